"""Run folders -> what a page shows of them."""

import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zeno.records.folder import RECORDS_FILE, RUN_FILE, Record, read_whole

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


MOST_WORKERS = 100_000  # more is a mistake in a file


@dataclass
class Seen:
    """A run as far as it went."""

    name: str
    settings: dict[str, str]
    records: list[Record]
    workers: int
    planned: int | None  # steps, where the settings say
    notes: list[str] = field(default_factory=list)  # what a reader of the page should know of the folder


def seen(folder: Path, name: str | None = None) -> Seen:
    """Reads a run folder; what follows a damaged line of its records is left out, and said so."""
    settings, notes = settings_of(folder)
    records = read_whole(folder)
    workers = num_workers(settings, records)
    records = list(itertools.takewhile(lambda record: fits(record, workers), records))
    if (folder / RECORDS_FILE).exists() and (folder / RECORDS_FILE).read_bytes().count(b"\n") > len(records):
        notes.append(damaged(len(records)))
    return Seen(name or folder.resolve().name, settings, records, workers, planned(settings), notes)


def fits(record: Record, workers: int) -> bool:
    """Whether a record is what a run of so many workers writes; what a file says may be anything."""
    try:
        numbers = [record.lr, *record.seconds.values(), *record.workers.values()]
        maybe = [record.samples, record.accuracy, record.train_loss, *(record.scores or ())]
        lists = (record.unjudged, record.quarantined, record.late, record.faulty or [])
        named = [*record.errors, *(worker for some in lists for worker in some)]
        return (
            all(len(row) == workers for row in (record.kept, record.scores) if row is not None)
            and all(type(kept) is bool for kept in record.kept or ())
            and all(map(_is_number, numbers))
            and all(number is None or _is_number(number) for number in maybe)
            and all(type(some) is list for some in lists)
            and all(type(worker) is int and 0 <= worker < workers for worker in named)
            and all(type(error) is str for error in record.errors.values())
            and type(record.evaluated) is bool
            and (record.skipped is None or type(record.skipped) is str)
        )
    except (AttributeError, TypeError, ValueError, OverflowError):
        return False


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(float(value))


def damaged(line: int) -> str:
    return f"{RECORDS_FILE} is damaged at line {line + 1}: what follows is not shown."


def settings_of(folder: Path) -> tuple[dict[str, str], list[str]]:
    """The names and values of run.toml as text, and what was wrong with it."""
    try:
        found = tomllib.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, [f"There is no {RUN_FILE}: the settings are not known."]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return {}, [f"{RUN_FILE} is damaged: the settings are not known."]
    return {name: _text(value) for name, value in found.items()}, []


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def planned(settings: dict[str, str]) -> int | None:
    return _number(settings.get("steps"))


def num_workers(settings: dict[str, str], records: Sequence[Record]) -> int:
    """As many as the settings say, or as the records have where that is not possible."""
    told = _number(settings.get("workers")) or 0
    return told if 0 < told <= MOST_WORKERS else max((_width(record) for record in records), default=0)


def _width(record: Record) -> int:
    row = record.kept or record.scores
    return len(row) if isinstance(row, list) else 0


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def runs_in(folders: Sequence[Path]) -> dict[str, Path]:
    """The run folders by short names: the folders themselves, or their subfolders where those are the runs."""
    found: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"A report needs run folders. Found no folder {folder}. Check the name.")
        inside = _runs(folder)
        if not inside:
            raise ValueError(
                f"A report needs a folder with {RECORDS_FILE}, or one whose subfolders have it. "
                f"Found none in {folder}. Name the folder that `zeno train` or `zeno compare` wrote."
            )
        found += inside
    return named(found)


def runs_so_far(folders: Sequence[Path]) -> dict[str, Path]:
    """The same of folders that may not hold a run yet."""
    return named([run for folder in folders if folder.is_dir() for run in _runs(folder)])


def _runs(folder: Path) -> list[Path]:
    if (folder / RECORDS_FILE).is_file():
        return [folder]
    return sorted(path for path in folder.iterdir() if (path / RECORDS_FILE).is_file())


def named(folders: Sequence[Path]) -> dict[str, Path]:
    """Each folder once, by as many of its last parts as tell it from the others."""
    paths = list(dict.fromkeys(folder.resolve() for folder in folders))
    num_parts = dict.fromkeys(paths, 1)
    while True:
        names = {path: "/".join(path.parts[-num_parts[path] :]) for path in paths}
        count = Counter(names.values())
        alike = [path for path in paths if count[names[path]] > 1]
        if not alike:
            return {names[path]: path for path in paths}
        for path in alike:
            num_parts[path] += 1
