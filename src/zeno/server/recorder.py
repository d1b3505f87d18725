"""What a `Server` writes down: a record of every step in a folder, and the ledger."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zeno.problem.registry import describe
from zeno.records.folder import RECORDS_FILE, Journal, read
from zeno.records.ledger import Ledger, ledger_of
from zeno.records.record import Record
from zeno.rules import PARTS
from zeno.rules.rule import Rule


class Recorder:
    """Opened before the first step, so that an unsuitable folder raises before anything has changed.

    Without a folder it keeps only the ledger.
    """

    def __init__(self, folder: Path | None, rule: Rule) -> None:
        self.folder = folder
        self.rule = rule
        self.ledger: Ledger | None = None
        self._journal: Journal | None = None

    def open(self, workers: int, steps: int) -> None:
        """Continues after `steps` steps."""
        if self._journal is None or self.ledger is None or self.ledger.workers != workers:
            earlier = self._earlier(steps, started=self._journal is not None)
            self.close()
            settings = f"rule = {json.dumps(describe(self.rule, PARTS))}\nworkers = {workers}\n"
            self._journal = Journal(self.folder, settings, earlier, keep=False)
            if self.ledger is None or self.ledger.steps != steps or self.ledger.workers != workers:
                self.ledger = ledger_of(earlier or (), workers)

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
        self.ledger.add(record)

    def forget(self) -> None:
        """The next steps follow others than those that were written."""
        self.close()
        self.ledger = None

    def close(self) -> None:
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
