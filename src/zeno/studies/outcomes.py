"""What came of runs, by their settings: one JSON line each in a file that a killed process leaves readable."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

Outcome = TypeVar("Outcome")  # a dataclass


class Outcomes(Generic[Outcome]):
    """The file; `kind` is the dataclass that its lines are of, `key_of` makes of the settings what tells runs apart."""

    def __init__(self, path: Path, kind: type[Outcome], key_of: Callable[[str], str]) -> None:
        self.path = path
        self.kind = kind
        self.key_of = key_of

    def read(self) -> dict[str, Outcome]:
        """By the keys of their runs; a line that was cut off or damaged is left out."""
        return {self.key_of(settings): outcome for settings, outcome in self._lines()}

    def mend(self) -> None:
        """Leaves out what was cut off or damaged: the file is the old or the new one at any moment."""
        new = self.path.with_name(f".{self.path.name}.new")
        new.write_text("".join(_line(settings, one) for settings, one in self._lines()), encoding="utf-8")
        os.replace(new, self.path)

    def append(self, settings: str, outcome: Outcome) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(settings, outcome))

    def _lines(self) -> list[tuple[str, Outcome]]:
        found = []
        if self.path.exists():
            for line in self.path.read_bytes().split(b"\n")[:-1]:
                with suppress(ValueError, TypeError, KeyError, AttributeError):
                    values = json.loads(line)
                    found.append((str(values.pop("run")), self.kind(**values)))
        return found


def _line(settings: str, outcome: Any) -> str:
    return json.dumps({"run": settings, **asdict(outcome)}, allow_nan=False) + "\n"
