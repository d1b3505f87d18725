"""Objects written as text, a name with parameters: `zeno(trim=13)`, `sign_flip(10)`, `mean`, `nnm(faulty=4)+median`.

The command line, TOML files and run folders use this form for rules, faults, splits, models, optimizers and schedules.
"""

import ast
import difflib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import Any, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")
NOTHING: Mapping[str, Any] = {}
PLAIN = (bool, int, float, str, type(None))
UNREADABLE = (SyntaxError, ValueError, MemoryError, RecursionError)  # what `ast` raises for a text


@runtime_checkable
class Sum(Protocol):
    """An object made of others, written as `a+b`: a chain of rules, or several faults in one run."""

    @property
    def parts(self) -> Sequence[object]: ...


def parse(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """`name(1, key=2)` -> ("name", [1], {"key": 2}); values are Python literals."""
    if re.fullmatch(r"[^\W\d][\w-]*", text.strip()):  # also `zeno-auto`, which is no name, but is like one
        return text.strip(), [], {}
    remedy = ""
    with suppress(*UNREADABLE):
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            bare = [one.id for one in (*node.args, *(k.value for k in node.keywords)) if isinstance(one, ast.Name)]
            remedy = f" Text needs quotes: {bare[0]!r}." if bare else ""
            keywords = {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg is not None}
            if len(keywords) == len(node.keywords):
                return node.func.id, [ast.literal_eval(a) for a in node.args], keywords
    raise ValueError(f"Expected a name, or a name with parameters such as name(key=1). Found {text!r}.{remedy}")


def split(text: str) -> list[str]:
    """`a(1) + b` -> ["a(1)", "b"]."""
    with suppress(*UNREADABLE):  # `parse` raises for it
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return [*split(ast.unparse(node.left)), ast.unparse(node.right)]
    return [text]


def find(what: str, name: str, known: Mapping[str, T]) -> T:
    """Returns the entry with this name; raises an error that lists all names if there is none."""
    if name in known:
        return known[name]
    letters = {re.sub(r"[\W_]", "", one).lower(): one for one in known}  # ZenoAuto and zeno-auto mean zeno_auto
    close = difflib.get_close_matches(re.sub(r"[\W_]", "", name).lower(), letters, n=1)
    hint = f"Did you mean {letters[close[0]]}? " if close else ""
    raise ValueError(f"Unknown {what} {name!r}. {hint}There are: {', '.join(known)}.")


def build(
    what: str,
    text: str,
    known: Mapping[str, Callable[..., T]],
    defaults: Mapping[str, Any] = NOTHING,
    overrides: Mapping[str, Any] = NOTHING,
) -> T:
    """Builds the object that the text describes.

    `defaults` apply to parameters that the text leaves out, if the object has them. `overrides` win over the text; they
    raise an error if the object does not have them.
    """
    name, _, _ = parse(text)
    make = find(what, name, known)
    signature = inspect.signature(make)
    usable_defaults = {key: value for key, value in defaults.items() if key in signature.parameters}
    everything = {**usable_defaults, **bind(what, text, signature), **overrides}
    with _misfit(what, text, signature):
        signature.bind(**everything)
    try:
        return make(**everything)
    except (TypeError, ArithmeticError) as error:  # a value of the wrong type
        raise ValueError(f"The {what} {text!r} cannot be made: {error}.") from error


def bind(what: str, text: str, signature: inspect.Signature) -> dict[str, Any]:
    """Returns the parameters that the text gives; raises an error if the signature does not have them."""
    _, args, keywords = parse(text)
    with _misfit(what, text, signature):
        return signature.bind_partial(*args, **keywords).arguments


@contextmanager
def _misfit(what: str, text: str, signature: inspect.Signature) -> Iterator[None]:
    try:
        yield
    except TypeError as error:
        form = ", ".join(str(p.replace(annotation=p.empty)) for p in signature.parameters.values())
        raise ValueError(f"The {what} {text!r} does not fit {parse(text)[0]}({form}): {error}.") from None


def describe(value: object, known: Mapping[str, object]) -> str:
    """Returns the text that `build` makes this object from, without parameters at their defaults. Chains: a+b.

    An object of an unknown class is described by its class, with its fields if these are plain values. The text is the
    same in every process: it holds no address in memory.
    """
    if isinstance(value, Sum):
        return "+".join(describe(part, known) for part in value.parts)
    name = next((name for name, kind in known.items() if kind is type(value)), None)
    if name is not None and is_dataclass(value):
        own_first = sorted(fields(value), key=lambda f: bool(f.kw_only))  # as in a signature
        changed = [f"{f.name}={getattr(value, f.name)!r}" for f in own_first if getattr(value, f.name) != f.default]
        return f"{name}({', '.join(changed)})" if changed else name
    if is_dataclass(value) and all(isinstance(getattr(value, f.name), PLAIN) for f in fields(value)):
        return repr(value)
    kind = value if isinstance(value, type | FunctionType) else type(value)
    return f"<{kind.__module__}.{kind.__qualname__}>"
