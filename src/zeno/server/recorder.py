"""What a `Server` writes down: a record of every step, in a folder and for watchers, and the ledger."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

from zeno.problem.registry import describe
from zeno.records.folder import RECORDS_FILE, Journal, read
from zeno.records.ledger import FAILURE_RATE, Ledger, ledger_of
from zeno.records.record import Record
from zeno.rules import PARTS
from zeno.rules.rule import Rule

Watcher: TypeAlias = Callable[[Record, Ledger], object]
"""Called with the record of each step, and the ledger after it."""


class Recorder:
    """Opened before the first step, so that an unsuitable folder raises before anything has changed.

    Without a folder it keeps only the ledger.
    """

    def __init__(
        self,
        folder: Path | None,
        rule: Rule,
        watchers: Sequence[Watcher] = (),
        failure_rate: float = FAILURE_RATE,
        similar_data: bool = False,
    ) -> None:
        self.folder = folder
        self.rule = rule
        self.failure_rate = Ledger(0, failure_rate=failure_rate).failure_rate  # which checks it
        self.similar_data = similar_data
        self.named: list[int] = []  # the workers that became suspect with the last record
        self.ledger: Ledger | None = None
        self._watchers = list(watchers)
        self._watched: Record | None = None  # the last one; watchers get it when nothing can be added to it any more
        self._journal: Journal | None = None
        self._workers: int | None = None  # that the journal was opened for

    def open(self, workers: int | None, steps: int) -> None:
        """Continues after `steps` steps; `workers` is None if they have names, and may join."""
        if self._journal is None or self._workers != workers:
            earlier = self._earlier(steps, started=self._journal is not None)
            self._close_journal()
            rule = f"rule = {json.dumps(describe(self.rule, PARTS))}\n"
            settings = f"{rule}failure_rate = {self.failure_rate!r}\n"
            settings += "similar_data = true\n" if self.similar_data else ""
            settings += "" if workers is None else f"workers = {workers}\n"
            written = ledger_of(earlier or (), workers or 0, self.failure_rate, self.similar_data)
            if self.ledger is None or steps == 0:
                self.ledger = written
            elif self.folder is not None:
                if _counts(written) != _counts(self.ledger):
                    raise ValueError(
                        f"The records in {self.folder} are not those of the {steps} steps that this Server continues "
                        "after. Pass the folder they were written to, or create a Server that starts anew."
                    )
                self.ledger = written  # with another failure rate, verdicts differ from those before
            self._journal = Journal(self.folder, settings, earlier, keep=False)
            self._workers = workers

    @contextmanager
    def written(self, record: Record) -> Iterator[None]:
        """Writes the record of a step that the caller takes inside; removes it again if that raises."""
        assert self._journal is not None  # it was opened
        assert self.ledger is not None
        self._journal.append(record)
        try:
            yield
        except BaseException:
            self._journal.remove_last()
            raise
        self.named = self.ledger.add(record)
        self._watched = record

    def write_again(self, record: Record) -> None:
        """Writes the last record once more, with what was measured since."""
        assert self._journal is not None  # it was opened
        self._journal.append(record)
        self._watched = record

    def pass_on(self) -> None:
        """Calls the watchers with the last record, which is complete now."""
        record, self._watched = self._watched, None
        if record is not None and self.ledger is not None:
            for watcher in self._watchers:
                watcher(record, self.ledger)

    def continue_from(self, ledger: Ledger | None) -> None:
        """The next steps follow others than those that were written: those of this ledger."""
        self.pass_on()
        self._close_journal()
        if ledger is not None:
            ledger.failure_rate = self.failure_rate
        self.ledger = ledger

    def close(self) -> None:
        """Closes the files, and the watchers that can be closed."""
        self.pass_on()
        self._close_journal()
        for watcher in self._watchers:
            _close(watcher)

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()
        self._journal = None

    def _earlier(self, steps: int, started: bool) -> list[Record] | None:
        """The folder's records of the steps before; None where it should not hold any yet."""
        if self.folder is not None and steps == 0 and not started and (self.folder / RECORDS_FILE).exists():
            raise ValueError(
                f"The folder {self.folder} already holds the records of other steps. Pass another folder, or load the "
                "state_dict() that was saved after them."
            )
        if self.folder is None or steps == 0:
            return [] if started else None
        found = read(self.folder)[:steps]
        if len(found) < steps:
            raise ValueError(
                f"A Server that continues after {steps} steps needs their records. Found {len(found)} in "
                f"{self.folder}. Pass the folder they were written to, or create a Server that starts anew."
            )
        return found


def _close(watcher: object) -> None:
    if isinstance(watcher, AbstractContextManager):
        watcher.__exit__(None, None, None)


def _counts(ledger: Ledger) -> list[object]:
    """What two ledgers of the same steps have in common exactly, also on different machines."""
    return [(row.name, row.steps, row.dropped, row.errors) for row in ledger.rows]
