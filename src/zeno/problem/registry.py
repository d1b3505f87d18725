"""Names with parameters, as people write them: `zeno(trim=13)`, `sign_flip(10)`, `mean`, `nnm(faulty=4)+median`.

The command line, TOML files and run folders use this one form for rules, faults, splits, optimizers and schedules.
"""

import ast
import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")
NOTHING: Mapping[str, Any] = {}


def parse(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """`name(1, key=2)` -> ("name", [1], {"key": 2}); values are Python literals."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, [], {}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            keywords = {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg is not None}
            if len(keywords) == len(node.keywords):
                return node.func.id, [ast.literal_eval(a) for a in node.args], keywords
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        pass
    raise ValueError(f"Expected a name, or a name with parameters such as name(key=1). Found {text!r}.")


def split(text: str) -> list[str]:
    """`a(1) + b` -> ["a(1)", "b"]."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return [text]  # `parse` says what is wrong with it
    parts = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts.append(ast.unparse(node.right))
        node = node.left
    return [ast.unparse(node), *reversed(parts)] if parts else [text]


def find(what: str, name: str, known: Mapping[str, T]) -> T:
    """The entry of this name, or an error that lists what there is."""
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    raise ValueError(f"Unknown {what} {name!r}. {hint}There are: {', '.join(known)}.")


def build(
    what: str,
    text: str,
    known: Mapping[str, Callable[..., T]],
    defaults: Mapping[str, Any] = NOTHING,
    overrides: Mapping[str, Any] = NOTHING,
) -> T:
    """Makes the object that the text describes.

    `defaults` stand in for parameters that the text leaves out, where the object takes them; `overrides` win over
    the text, and are refused where the object does not take them.
    """
    name, args, keywords = parse(text)
    make = find(what, name, known)
    signature = inspect.signature(make)
    usable_defaults = {key: value for key, value in defaults.items() if key in signature.parameters}
    try:
        written = signature.bind_partial(*args, **keywords).arguments
        for p in signature.parameters.values():
            if p.kind is p.VAR_KEYWORD:  # what goes on to another constructor
                written |= written.pop(p.name, {})
        everything = {**usable_defaults, **written, **overrides}
        signature.bind(**everything)
    except TypeError as error:
        form = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        raise ValueError(f"The {what} {text!r} does not fit {name}({', '.join(map(str, form))}): {error}.") from None
    try:
        return make(**everything)
    except (TypeError, ArithmeticError) as error:  # a value of the wrong kind
        raise ValueError(f"The {what} {text!r} cannot be made: {error}.") from error


def describe(value: object, known: Mapping[str, object]) -> str:
    """The text that `build` makes this object from; parameters at their defaults are left out. Chains: a+b."""
    parts: Sequence[object] = getattr(value, "parts", ())
    if parts:
        return "+".join(describe(part, known) for part in parts)
    name = next((name for name, kind in known.items() if kind is type(value)), None)
    if name is None or not is_dataclass(value):
        return repr(value)
    own_first = sorted(fields(value), key=lambda f: bool(f.kw_only))  # as in a signature
    changed = [f"{f.name}={getattr(value, f.name)!r}" for f in own_first if getattr(value, f.name) != f.default]
    return f"{name}({', '.join(changed)})" if changed else name
