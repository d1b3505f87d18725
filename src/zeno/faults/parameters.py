"""Types of fault parameters, besides those of rules, and the check of their values."""

from typing import Annotated, get_args

from zeno.rules.parameters import Requirement

Share = Annotated[float, Requirement("a number above 0 and at most 1", lambda value: 0 < value <= 1)]
Switch = Annotated[bool, Requirement("True or False", lambda value: isinstance(value, bool))]


def check(owner: object, name: str, value: object, hint: object) -> None:
    """Raises ValueError for a value that the requirements in its type hint exclude; None fits `| None`."""
    if isinstance(hint, Requirement) and not hint.holds(value):
        raise ValueError(f"{type(owner).__name__} needs {name} as {hint.text}. Found {name}={value!r}.")
    parts = get_args(hint)
    if value is not None or type(None) not in parts:
        for part in parts:
            check(owner, name, value, part)
