"""Settings as TOML text, read by `tomllib` or, before Python 3.11, its backport."""

import json
import sys
from collections.abc import Mapping
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def loads(text: str) -> dict[str, Any]:
    """The values in a TOML text; raises ValueError if it is not valid."""
    return dict(tomllib.loads(text))


def dumps(values: Mapping[str, Any]) -> str:
    """Values as lines of TOML; those that are None are left out."""
    given = {name: value for name, value in values.items() if value is not None}
    return "".join(f"{name} = {json.dumps(value, ensure_ascii=False, default=str)}\n" for name, value in given.items())
