"""Counts per worker over the steps of a run."""

import math

import numpy as np

from zeno.records.betting import Mask, Values
from zeno.records.comparison import num_above_and_below
from zeno.records.record import Record
from zeno.workers.reply import ErrorKind

RECENT = 100  # steps
TOO_LARGE = "too large"  # a kind of error that replies do not have
KINDS = [*(kind.value for kind in ErrorKind), TOO_LARGE]


class Tally:
    """How often each worker was asked, dropped, late, and what was wrong with its replies; [m] each."""

    def __init__(self, workers: int) -> None:
        self.quarantined, self.counted, self.dropped, self.ranked, self.compared = np.zeros((5, workers), dtype=int)
        self.longest, self.faulty, self.late, self._streak = np.zeros((4, workers), dtype=int)
        self.ranks, self.cosines = np.zeros((2, workers))  # sums
        self._errors = np.zeros((len(KINDS), workers), dtype=int)
        self.knows_faulty = False
        self._steps = 0
        self._recent = np.zeros((RECENT, 3, workers))  # who counted, who was dropped, who is on average; used in turn

    def add(self, record: Record, asked: Mask, too_large: Mask) -> None:
        """Adds a step; `too_large` are the workers whose candidates were."""
        counted = asked & any(record.kept or ())  # if no worker is kept, none counts as dropped
        dropped = np.zeros_like(asked)
        dropped[record.dropped] = True
        self.counted += counted
        self.dropped += dropped
        share = sum(record.kept or ()) / max(1, int(asked.sum()))
        self._recent[self._steps % RECENT] = counted, dropped, share * counted
        self._steps += 1
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
        np.add.at(self.late, record.late, 1)  # a worker may be there twice
        for worker, error in record.errors.items():
            self._errors[KINDS.index(error.kind.value), worker] += 1
        self._errors[-1] += too_large
        if record.faulty is not None:
            self.knows_faulty = True
            self.faulty[record.faulty] += 1

    def errors(self, worker: int) -> dict[str, int]:
        """Steps without a usable reply, by kind, and steps with a candidate that was too large."""
        return {kind: int(n) for kind, n in zip(KINDS, self._errors[:, worker], strict=True) if n}

    def recent(self) -> tuple[Values, Values, Values]:
        """[m] each, of the last `RECENT` steps: how often a worker counted, was dropped, and is kept on average."""
        counted, dropped, expected = self._recent.sum(axis=0)
        return counted, dropped, expected


def _ranks(record: Record, asked: Mask) -> Values:
    """The ranks of the workers that were asked, 1 is best; equal scores share a rank, and no score is the lowest."""
    assert record.scores is not None
    scores = np.array([-math.inf if score is None else score for score in record.scores])
    scores[list(record.errors)] = -math.inf
    among = scores[asked]
    above, beneath = num_above_and_below(among, among)
    return 1 + above + (len(among) - 1 - above - beneath) / 2
