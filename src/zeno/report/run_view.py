"""A run as tables, figures and pages see it: its settings, records and ledger."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile
from pathlib import Path

from zeno.records import toml
from zeno.records.files import read_file
from zeno.records.folder import COMPARE_FILE, RECORDS_FILE, RUN_FILE, Reader, lines_in
from zeno.records.ledger import FAILURE_RATE, Ledger
from zeno.records.names import is_name
from zeno.records.record import Record

MOST_UNSEEN = 1_000  # workers that are shown because the settings say so; more have to be in the records


@dataclass
class RunView:
    """A run as far as it has got."""

    name: str
    settings: dict[str, str]
    records: list[Record]
    workers: int  # so far; 0: not known yet
    planned: int | None = None  # steps, if the settings say
    notes: list[str] = field(default_factory=list)  # problems with the folder, for the reader
    said: int | None = None  # workers, if the settings say
    failure_rate: float = FAILURE_RATE  # of a healthy worker
    similar_data: bool = False  # of the workers
    names: list[str] = field(default_factory=list)  # of the workers, if they have names
    _ledger: Ledger | None = field(default=None, init=False, repr=False, compare=False)
    _reader: Reader = field(default_factory=Reader, init=False, repr=False, compare=False)
    num_lines: int = field(default=0, init=False, repr=False, compare=False)  # that were read
    _damaged: bool = field(default=False, init=False, repr=False, compare=False)

    @property
    def ledger(self) -> Ledger:
        """Computed once; records that are new since the last call are added."""
        if self._ledger is None or (self._ledger.workers != self.workers and not self.names):
            workers = 0 if self.names else self.workers
            self._ledger = Ledger(workers, failure_rate=self.failure_rate, similar_data=self.similar_data)
        for record in self.records[self._ledger.steps :]:
            self._ledger.add(record)
        return self._ledger

    def extend(self, lines: Sequence[bytes]) -> None:
        """Appends the records in these lines, up to the first damaged one."""
        if self._damaged:
            return
        records = list(self._reader.records(lines))
        if not self.names and not (records and records[0].joined):
            self.workers = self.workers or max(map(_width, records), default=0)
            if records and self.said not in (None, self.workers):
                self._damaged = True
                self.notes.append(f"{RUN_FILE} says {self.said} workers, and {RECORDS_FILE} does not have as many.")
                return
        num_fitting = sum(1 for _ in takewhile(self._take, records))
        self.num_lines += num_fitting
        if num_fitting < len(lines):
            self._damaged = True
            self.notes.append(f"{RECORDS_FILE} is damaged at line {self.num_lines + 1}: the rest is not shown.")

    def _take(self, record: Record) -> bool:
        """Adds a record, in place of the one of the same step if there is one; returns whether it fits this run."""
        is_new = record.step == len(self.records)
        if record.joined and is_new:
            names = [*self.names, *record.joined]
            known = self.names or not self.records  # all workers have names, or none has
            if not known or len(names) != len(set(names)) or not all(map(is_name, record.joined)):
                return False
            self.names, self.workers = names, len(names)
        if not _fits(record, self.workers):
            return False
        self.records[record.step :] = [record]
        return True

    @property
    def is_unreadable(self) -> bool:
        """Whether there are records, and none of them can be shown."""
        return self._damaged and not self.records


def open_run(folder: Path, name: str | None = None) -> RunView:
    """The view of a run folder before its first record."""
    settings, notes, numbers, rate, similar = {}, [], {}, FAILURE_RATE, False
    try:
        found = toml.loads(read_file(folder / RUN_FILE).decode())
        numbers = {key: found[key] for key in ("workers", "steps") if type(found.get(key)) is int and found[key] > 0}
        if type(found.get("failure_rate")) is float and 0 < found["failure_rate"] < 1:
            rate = found["failure_rate"]
        similar = found.get("similar_data") is True
        settings = {
            key: value if isinstance(value, str) else json.dumps(value, default=str) for key, value in found.items()
        }
    except FileNotFoundError:
        notes = [f"There is no {RUN_FILE}: the settings are not known."]
    except ValueError:
        notes = [f"{RUN_FILE} is damaged: the settings are not known."]
    said = numbers.get("workers")
    workers = 0 if said is None or said > MOST_UNSEEN else said
    return RunView(
        name or folder.resolve().name, settings, [], workers, numbers.get("steps"), notes, said, rate, similar
    )


def read_run(folder: Path, name: str | None = None) -> RunView:
    """Reads a run folder up to the first damaged record; a note says where that is."""
    view = open_run(folder, name)
    lines, rest = lines_in(folder)
    view.extend(lines)
    if rest and not view.notes:
        view.notes.append(f"The last line of {RECORDS_FILE} is incomplete: it is not shown.")
    return view


def read_runs(folders: Sequence[Path]) -> dict[Path, RunView]:
    """The runs in folders; raises ValueError if nothing of any can be shown."""
    views = {folder: read_run(folder, name) for name, folder in runs_in(folders).items()}
    if all(view.is_unreadable for view in views.values()):
        folder, view = next(iter(views.items()))
        raise ValueError(f"Nothing in {folder} can be shown. {view.notes[-1]}")
    return views


def _width(record: Record) -> int:
    return len(record.kept or record.scores or ())


def _fits(record: Record, workers: int) -> bool:
    """Whether a record has the sizes, and names of machines, that a run with so many workers writes."""
    arrivals = record.arrivals or ()
    if not all(len(pair) == 2 and 0 <= pair[1] <= record.step for pair in arrivals):
        return False
    named = {*record.errors, *record.quarantined, *record.late, *(record.faulty or ()), *record.lost, *record.machines}
    named |= {worker for worker, _ in arrivals}
    rows = (record.kept, record.scores, record.weights, record.cosines, record.lengths)
    sized = all(len(row) == workers for row in rows if row is not None)
    return sized and all(0 <= i < workers for i in named) and all(map(is_name, record.machines.values()))


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
    found = sorted(path for path in folder.iterdir() if (path / RECORDS_FILE).is_file())
    order = _order(folder / COMPARE_FILE)
    return sorted(found, key=lambda path: order.index(path.name) if path.name in order else len(order))


def _order(file: Path) -> list[str]:
    """The folders of the runs of a comparison in the order in which they were asked for; none if it is not known."""
    try:
        found = toml.loads(read_file(file).decode()).get("folders")
    except (OSError, ValueError):
        return []
    return found if isinstance(found, list) else []
