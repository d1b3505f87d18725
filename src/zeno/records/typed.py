"""Dataclasses from JSON values that may be anything."""

import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
Check = Callable[[Any], bool]


def typed(kind: type[T], values: Mapping[str, Any]) -> T:
    """An object of a dataclass; raises ValueError if a value is missing or is not of the annotated type.

    Values that the class has no field for are left out: a later version may have written them. Numbers are finite, and
    integers have at most 64 bits.
    """
    checks = _checks(cast("Hashable", kind))
    given = {name: value for name, value in values.items() if name in checks}
    for name, value in given.items():
        if not checks[name](value):
            raise ValueError(f"{kind.__name__}.{name} has a value of another type, or one that is out of range.")
    try:
        return kind(**given)
    except TypeError as error:
        raise ValueError(f"A {kind.__name__} lacks a value: {error}") from None


@cache
def _checks(kind: Any) -> dict[str, Check]:
    hints = get_type_hints(kind)
    return {f.name: _check(hints[f.name]) for f in fields(kind)}


def _check(kind: Any) -> Check:
    """Whether a value is of a type: a class, one of them or None, or a list or dict of them."""
    parts = get_args(kind)
    if get_origin(kind) is list:
        each = _check(parts[0])
        return lambda value: type(value) is list and all(map(each, value))
    if get_origin(kind) is dict:
        key, each = map(_check, parts)
        return lambda value: type(value) is dict and all(map(key, value)) and all(map(each, value.values()))
    if len(parts) == 2 and parts[1] is type(None):
        some = _check(parts[0])
        return lambda value: value is None or some(value)
    if kind is float:
        return lambda value: type(value) in (int, float) and abs(value) <= sys.float_info.max  # False for NaN
    if kind is int:
        return lambda value: type(value) is int and abs(value) < 2**63
    return lambda value: type(value) is kind
