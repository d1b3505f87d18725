"""Constants and registries such as `RULES`, read from the source files without importing them.

So `zeno rules`, or an error for a misspelt name, does not wait for torch.
"""

import ast
import builtins
import inspect
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from zeno.problem.registry import bind, find, parse, split

ROOT = Path(__file__).parent.parent


def check_names(settings: Mapping[str, Any], also: tuple[str, ...] = ()) -> None:
    """Raises an error for an unknown name of a rule, fault, task, model, split or delay, or an unknown parameter."""
    known = {
        "task": constant("problem.tasks", "TASKS"),
        "model": constant("problem.models", "MODELS"),
        "split": constant("problem.splits", "SPLITS"),
        "rule": constant("rules", "PRE_AGGREGATORS") | constant("rules", "RULES"),
        "fault": constant("faults", "FAULTS"),
        "delay": constant("workers.delays", "DELAYS"),
    }
    for what, found in known.items():
        value = settings.get(what)
        for text in value if isinstance(value, list | tuple) else [value]:
            if not isinstance(text, str) or text in also:
                continue
            if what == "task" and ":" in text:  # a function of the user's
                continue
            for part in split(text):
                bind(what, part, inspect.signature(find(what, parse(part)[0], found)))


@cache
def constant(module: str, name: str) -> Any:
    """Returns the value of a name at the top of a module of zeno.

    The values of a registry have the signatures and docstrings of its classes and functions, and nothing else.
    """
    for node in _tree(module).body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() if node.name == name:
                return _execute(module, _without_code(node), name)
            case ast.Assign(targets=[ast.Name(id=found)]) | ast.AnnAssign(target=ast.Name(id=found)) if found == name:
                assert node.value is not None
                return _execute(module, ast.Assign([ast.Name(name, ast.Store())], node.value), name)
            case ast.ImportFrom(module=str(source)):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        if source.startswith("zeno."):
                            return constant(source.removeprefix("zeno."), alias.name)
                        return vars(import_module(source))[alias.name]
    return vars(builtins)[name]


def _without_code(node: ast.ClassDef | ast.FunctionDef) -> ast.stmt:
    """Leaves the docstring and what decides the signature. Annotations are removed: they may name types of torch."""
    in_body = node.body if isinstance(node, ast.ClassDef) else []
    fields = [item for item in in_body if isinstance(item, ast.AnnAssign) and "ClassVar" not in ast.unparse(item)]
    node.body = [ast.Expr(ast.Constant(ast.get_docstring(node))), *fields]
    for part in ast.walk(node):
        if isinstance(part, ast.arg | ast.AnnAssign):
            part.annotation = ast.Constant(None)
        elif isinstance(part, ast.FunctionDef):
            part.returns = None
    return node


def _execute(module: str, node: ast.stmt, name: str) -> Any:
    """Executes a definition, with the values of the names in it, and returns what it defines."""
    read = [part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)]
    names = {"__name__": __name__, **{one: constant(module, one) for one in read}}
    exec(compile(ast.fix_missing_locations(ast.Module([node], [])), module, "exec"), names)
    return names[name]


@cache
def _tree(module: str) -> ast.Module:
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))
