"""Counts per worker over the steps of a run."""

from collections import Counter, deque

import numpy as np

from zeno.records.betting import Mask, Values
from zeno.records.record import Record

RECENT = 100  # steps


class Tally:
    """How often each worker was asked, dropped, late, and what was wrong with its replies; [m] each."""

    def __init__(self, workers: int) -> None:
        self.quarantined, self.counted, self.dropped, self.ranked, self.longest, self.faulty, self._streak = np.zeros(
            (7, workers), dtype=int
        )
        self.ranks = np.zeros(workers)  # sums
        self.late: Counter[int] = Counter()
        self.errors: list[Counter[str]] = [Counter() for _ in range(workers)]
        self.knows_faulty = False
        self._recent: deque[tuple[Mask, Mask]] = deque(maxlen=RECENT)

    def add(self, record: Record, asked: Mask, ranks: Values) -> None:
        counted = asked & any(record.kept or ())  # if no worker is kept, none counts as dropped
        dropped = np.zeros_like(asked)
        dropped[record.dropped] = True
        self.counted += counted
        self.dropped += dropped
        self._recent.append((counted, dropped))
        self._streak[counted & ~dropped] = 0
        self._streak += dropped
        self.longest = np.maximum(self.longest, self._streak)
        if record.scores is not None:
            self.ranked += asked
            self.ranks[asked] += ranks[asked]
        self.quarantined[record.quarantined] += 1
        self.late.update(record.late)
        for worker, error in record.errors.items():
            self.errors[worker][error.kind.value] += 1
        if record.faulty is not None:
            self.knows_faulty = True
            self.faulty[record.faulty] += 1

    def recent(self) -> tuple[Values, Values]:
        """[m] each: how often a worker counted and was dropped in the last `RECENT` steps."""
        nobody = np.zeros(len(self.ranks), dtype=bool)
        # A copy, because a thread that serves metrics may ask while the next step is added.
        counted, dropped = np.array(list(self._recent) or [(nobody, nobody)]).sum(axis=0)
        return counted, dropped
