"""Settings as TOML text, read by `tomllib` or, before Python 3.11, its backport."""

import json
import sys
from collections.abc import Mapping
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


LONGEST = 10_000  # characters; the time and memory to read a text can grow with the square of its length


def loads(text: str) -> dict[str, Any]:
    """The values in a TOML text; raises ValueError if it is not valid, too long or nested too deeply."""
    if len(text) > LONGEST:
        raise ValueError(f"Settings have at most {LONGEST} characters. Found {len(text)}.")
    try:
        values = dict(tomllib.loads(text))
        _check_numbers(values)
    except RecursionError:
        raise ValueError("Settings are nested too deeply.") from None
    return values


def _check_numbers(value: object) -> None:
    """Raises ValueError for an integer of more than 64 bits, which TOML does not have."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            _check_numbers(part)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"An integer has at most 64 bits. Found one of {value.bit_length()}.")


def dumps(values: Mapping[str, Any]) -> str:
    """Values as lines of TOML; those that are None are left out."""
    given = {name: value for name, value in values.items() if value is not None}
    return "".join(f"{name} = {json.dumps(value, ensure_ascii=False, default=str)}\n" for name, value in given.items())
