"""Counts per worker over the steps of a run."""

import numpy as np

from zeno.records.betting import Mask, Values
from zeno.records.record import Record
from zeno.workers.reply import ErrorKind

RECENT = 100  # steps
KINDS = list(ErrorKind)


class Tally:
    """How often each worker was asked, dropped, late, and what was wrong with its replies; [m] each."""

    def __init__(self, workers: int) -> None:
        self.quarantined, self.counted, self.dropped, self.ranked, self.longest, self.faulty, self._streak = np.zeros(
            (7, workers), dtype=int
        )
        self.ranks = np.zeros(workers)  # sums
        self.late = np.zeros(workers, dtype=int)
        self._errors = np.zeros((len(KINDS), workers), dtype=int)
        self.knows_faulty = False
        self._steps = 0
        self._recent = np.zeros((RECENT, 2, workers), dtype=bool)  # who counted, and who was dropped; used in turn

    def add(self, record: Record, asked: Mask, ranks: Values) -> None:
        counted = asked & any(record.kept or ())  # if no worker is kept, none counts as dropped
        dropped = np.zeros_like(asked)
        dropped[record.dropped] = True
        self.counted += counted
        self.dropped += dropped
        self._recent[self._steps % RECENT] = counted, dropped
        self._steps += 1
        self._streak[counted & ~dropped] = 0
        self._streak += dropped
        self.longest = np.maximum(self.longest, self._streak)
        if record.scores is not None:
            self.ranked += asked
            self.ranks[asked] += ranks[asked]
        self.quarantined[record.quarantined] += 1
        np.add.at(self.late, record.late, 1)  # a worker may be there twice
        for worker, error in record.errors.items():
            self._errors[KINDS.index(error.kind), worker] += 1
        if record.faulty is not None:
            self.knows_faulty = True
            self.faulty[record.faulty] += 1

    def errors(self, worker: int) -> dict[str, int]:
        """Steps without a usable reply, by kind."""
        return {kind.value: int(n) for kind, n in zip(KINDS, self._errors[:, worker], strict=True) if n}

    def recent(self) -> tuple[Values, Values]:
        """[m] each: how often a worker counted and was dropped in the last `RECENT` steps."""
        counted, dropped = self._recent.sum(axis=0)
        return counted, dropped
