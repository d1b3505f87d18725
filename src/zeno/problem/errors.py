"""Texts about objects that are not trusted: whatever their methods do, nothing here raises or grows."""

from typing import Any

MOST_LETTERS = 200  # of an exception, in a text


def type_name(value: object) -> str:
    """The name of the type, also where a metaclass overrides it."""
    name: Any = type.__dict__["__name__"].__get__(type(value))
    return str(name)[:MOST_LETTERS]


def text_of(error: BaseException) -> str:
    """`ValueError: what it says`, in one line; the type alone where its own text raises."""
    try:
        said = str.__str__(str(error)).strip()
    except Exception:
        said = ""
    lines = said.splitlines()
    return f"{type_name(error)}: {lines[0]}"[:MOST_LETTERS] if lines else type_name(error)
