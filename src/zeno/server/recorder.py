"""What the server of your own loop writes down: a record of every step in a folder, and the ledger."""

import json
from pathlib import Path

from zeno.problem.registry import describe
from zeno.records.folder import RECORDS_FILE, Journal, Record, read_whole
from zeno.records.ledger import Ledger, ledger_of
from zeno.rules import PARTS, Rule


class Logbook:
    """Opened before the first step, so that a folder that will not do is refused before anything has changed.

    Without a folder it keeps the ledger alone.
    """

    def __init__(self, folder: Path | None, rule: Rule) -> None:
        self.folder = folder
        self.rule = rule
        self.ledger: Ledger | None = None
        self._journal: Journal | None = None

    def open(self, workers: int, steps: int) -> Ledger:
        """Goes on after so many steps."""
        if self._journal is None or self.ledger is None or self.ledger.workers != workers:
            earlier = self._earlier(steps, begun=self._journal is not None)
            self.close()
            settings = f"rule = {json.dumps(describe(self.rule, PARTS))}\nworkers = {workers}\n"
            self._journal = Journal(self.folder, settings, earlier, keep=False)
            if self.ledger is None or self.ledger.steps != steps or self.ledger.workers != workers:
                self.ledger = ledger_of(earlier or (), workers)
        return self.ledger

    def write(self, record: Record) -> None:
        assert self._journal is not None  # it was opened
        assert self.ledger is not None
        self._journal.append(record)
        self.ledger.add(record)

    def forget(self) -> None:
        """What comes next follows other steps than those that were written."""
        self.close()
        self.ledger = None

    def close(self) -> None:
        if self._journal is not None:
            self._journal.__exit__(None, None, None)
        self._journal = None

    def _earlier(self, steps: int, begun: bool) -> list[Record] | None:
        """The records that the folder holds of the steps before; None where it should hold none yet."""
        if self.folder is not None and steps == 0 and not begun and (self.folder / RECORDS_FILE).exists():
            raise ValueError(
                f"The folder {self.folder} holds the records of other steps already. Name another one, or load what "
                "state_dict() returned after them."
            )
        if self.folder is None or steps == 0:
            return [] if begun else None
        found = read_whole(self.folder)[:steps]
        if len(found) < steps:
            raise ValueError(
                f"A Server that goes on after {steps} steps needs their records. Found {len(found)} in {self.folder}. "
                "Name the folder they were written to, or make a Server that starts anew."
            )
        return found
