"""A run as tables, figures and pages see it: its settings, records and ledger."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile
from pathlib import Path

from zeno.records import toml
from zeno.records.folder import RECORDS_FILE, RUN_FILE, lines_in, parse
from zeno.records.ledger import Ledger
from zeno.records.record import Record

MOST_WORKERS = 100_000  # a file with more is damaged


@dataclass
class RunView:
    """A run as far as it has got."""

    name: str
    settings: dict[str, str]
    records: list[Record]
    workers: int  # 0: not known yet
    planned: int | None = None  # steps, if the settings say
    notes: list[str] = field(default_factory=list)  # problems with the folder, for the reader
    _ledger: Ledger | None = field(default=None, init=False, repr=False, compare=False)
    _damaged: bool = field(default=False, init=False, repr=False, compare=False)

    @property
    def ledger(self) -> Ledger:
        """Computed once; records that are new since the last call are added."""
        if self._ledger is None or self._ledger.workers != self.workers:
            self._ledger = Ledger(self.workers)
        for record in self.records[self._ledger.steps :]:
            self._ledger.add(record)
        return self._ledger

    def extend(self, lines: Sequence[bytes]) -> None:
        """Appends the records in these lines, up to the first damaged one."""
        if self._damaged:
            return
        records = list(parse(lines, first_step=len(self.records)))
        self.workers = self.workers or max(map(_width, records), default=0)
        fitting = list(takewhile(lambda record: _fits(record, self.workers), records))
        self.records += fitting
        if len(fitting) < len(lines):
            self._damaged = True
            self.notes.append(f"{RECORDS_FILE} is damaged at line {len(self.records) + 1}: the rest is not shown.")


def open_run(folder: Path, name: str | None = None) -> RunView:
    """The view of a run folder before its first record."""
    settings, notes = {}, []
    try:
        found = toml.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
        settings = {
            key: value if isinstance(value, str) else json.dumps(value, default=str) for key, value in found.items()
        }
    except FileNotFoundError:
        notes = [f"There is no {RUN_FILE}: the settings are not known."]
    except ValueError:
        notes = [f"{RUN_FILE} is damaged: the settings are not known."]
    numbers = {key: int(settings[key]) for key in ("workers", "steps") if settings.get(key, "").isdecimal()}
    workers = numbers.get("workers", 0)
    known = workers if workers <= MOST_WORKERS else 0
    return RunView(name or folder.resolve().name, settings, [], known, numbers.get("steps"), notes)


def read_run(folder: Path, name: str | None = None) -> RunView:
    """Reads a run folder up to the first damaged record; a note says where that is."""
    view = open_run(folder, name)
    view.extend(lines_in(folder))
    return view


def _width(record: Record) -> int:
    row = record.kept or record.scores
    return len(row) if isinstance(row, list) else 0


def _fits(record: Record, workers: int) -> bool:
    """Whether a record has the types and sizes that a run with so many workers writes; a file may hold anything."""
    try:
        optional = [record.accuracy, record.train_loss, *(record.scores or ())]
        numbers = [record.lr, record.own, *(record.weights or ()), *record.seconds.values(), *record.workers.values()]
        numbers += [number for number in optional if number is not None]
        lists = (record.quarantined, record.late, record.faulty or [])
        named = [*record.errors, *(worker for some in lists for worker in some)]
        return (
            all(len(row) == workers for row in (record.kept, record.scores, record.weights) if row is not None)
            and all(type(kept) is bool for kept in [*(record.kept or ()), record.evaluated])
            and all(isinstance(number, int | float) and math.isfinite(float(number)) for number in numbers)
            and all(type(some) is list for some in lists)
            and all(type(worker) is int and 0 <= worker < workers for worker in named)
            and all(text is None or type(text) is str for text in (record.skipped, record.note))
        )
    except (AttributeError, TypeError, ValueError, OverflowError):
        return False


def runs_in(folders: Sequence[Path]) -> dict[str, Path]:
    """Short name -> run folder: the folders themselves, or their subfolders where those hold the runs."""
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"There is no folder {folder}. Name a folder that `zeno train` or `zeno compare` wrote.")
        if not _runs(folder):
            raise ValueError(
                f"There is no {RECORDS_FILE} in {folder} or its subfolders. "
                "Name a folder that `zeno train` or `zeno compare` wrote."
            )
    return runs_so_far(folders)


def runs_so_far(folders: Sequence[Path]) -> dict[str, Path]:
    """The same for folders that may not hold a run yet."""
    paths = list(dict.fromkeys(run.resolve() for folder in folders if folder.is_dir() for run in _runs(folder)))
    return {_short_name(path, paths): path for path in paths}


def _short_name(path: Path, paths: Sequence[Path]) -> str:
    """As many of the last parts of a path as it takes to be unique among these."""
    unique = (n for n in count(1) if sum(path.parts[-n:] == other.parts[-n:] for other in paths) == 1)
    return "/".join(path.parts[-next(unique) :])


def _runs(folder: Path) -> list[Path]:
    if (folder / RECORDS_FILE).is_file():
        return [folder]
    return sorted(path for path in folder.iterdir() if (path / RECORDS_FILE).is_file())
