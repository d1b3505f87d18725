"""Counts per worker over the steps of a run."""

import math
from collections import Counter, deque

import numpy as np

from zeno.records.betting import Mask, Values
from zeno.records.comparison import num_above_and_below
from zeno.records.record import Record

RECENT = 100  # steps
TOO_LARGE = "too large"  # counted with the errors


class Tally:
    """How often each worker was asked, dropped, late, and what was wrong with its replies; [m] each."""

    def __init__(self, workers: int) -> None:
        self.quarantined, self.counted, self.dropped, self.ranked, self.compared = np.zeros((5, workers), dtype=int)
        self.longest, self.faulty, self._streak = np.zeros((3, workers), dtype=int)
        self.ranks, self.cosines = np.zeros((2, workers))  # sums
        self.late: Counter[int] = Counter()
        self.errors: list[Counter[str]] = [Counter() for _ in range(workers)]
        self.knows_faulty = False
        self._recent: deque[Values] = deque(maxlen=RECENT)

    def add(self, record: Record, asked: Mask, too_long: Mask) -> None:
        """Adds a step; `too_long` are the workers whose candidates were."""
        counted = asked & any(record.kept or ())  # if no worker is kept, none counts as dropped
        dropped = np.zeros_like(asked)
        dropped[record.dropped] = True
        self.counted += counted
        self.dropped += dropped
        share = sum(record.kept or ()) / max(1, int(asked.sum()))
        self._recent.append(np.array([counted, dropped, share * counted]))
        self._streak[counted & ~dropped] = 0
        self._streak += dropped
        self.longest = np.maximum(self.longest, self._streak)
        if record.scores is not None:
            self.ranked += asked
            self.ranks[asked] += _ranks(record, asked)
        for worker, cosine in enumerate(record.cosines or ()):
            if cosine is not None and asked[worker]:
                self.compared[worker] += 1
                self.cosines[worker] += cosine
        self.quarantined[record.quarantined] += 1
        self.late.update(record.late)
        for worker, error in record.errors.items():
            self.errors[worker][error.kind.value] += 1
        for worker in np.flatnonzero(too_long).tolist():
            self.errors[worker][TOO_LARGE] += 1
        if record.faulty is not None:
            self.knows_faulty = True
            self.faulty[record.faulty] += 1

    def failures(self, worker: int) -> tuple[int, int]:
        """Steps at which it failed, and at which its candidate was too large."""
        large = self.errors[worker][TOO_LARGE]
        return sum(self.errors[worker].values()) - large, large

    def recent(self) -> tuple[Values, Values, Values]:
        """[m] each, of the last `RECENT` steps: how often a worker counted, was dropped, and is kept on average."""
        # A copy, because a thread that serves metrics may ask while the next step is added.
        counted, dropped, expected = np.sum([np.zeros((3, len(self.ranks))), *self._recent], axis=0)
        return counted, dropped, expected


def _ranks(record: Record, asked: Mask) -> Values:
    """The ranks of the workers that were asked, 1 is best; equal scores share a rank, and no score is the lowest."""
    assert record.scores is not None
    scores = np.array([-math.inf if score is None else score for score in record.scores])
    scores[list(record.errors)] = -math.inf
    among = scores[asked]
    above, beneath = num_above_and_below(among, among)
    return 1 + above + (len(among) - 1 - above - beneath) / 2
