"""MDA, minimum diameter averaging (El Mhamdi et al., 2020): the tightest group that is large enough."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from zeno.rules.rule import Aggregate, Oracle, Rows, Rule, Tolerated

MOST_TIES = 1000  # groups of the same diameter that are compared: there are few, unless an attacker made them


@dataclass(frozen=True)
class MDA(Rule):
    """Average of the subset of m - faulty candidates with the smallest diameter; tolerates a faulty minority.

    Among groups of the same diameter, the one with the least sum of squared distances. The search is exact; its
    cost grows with 2 ** faulty at worst.
    """

    faulty: Tolerated

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        rows.require(2 * self.faulty + 1, "more than 2 * faulty", faulty=self.faulty)
        distances = rows.squared_distances()
        kept = tightest(distances.cpu().numpy(), rows.remaining(self.faulty))
        return rows.average(torch.from_numpy(kept).to(distances.device))


def tightest(distances: NDArray[np.float64], faulty: int) -> NDArray[np.bool_]:
    """[n] bool: the n - faulty rows of least diameter."""
    everyone, widths = np.ones(len(distances), dtype=np.bool_), np.unique(distances)

    def is_wide_enough(width: float) -> bool:
        return any(True for _ in _groups(distances > width, everyone, faulty))

    least = widths[bisect_left(widths, True, hi=len(widths) - 1, key=is_wide_enough)]  # the last is always enough
    tied = islice(_groups(distances > least, everyone, faulty), MOST_TIES)
    best = min(tied, key=lambda group: distances[group][:, group].sum())
    best[np.flatnonzero(best)[len(best) - faulty :]] = False  # more rows than needed are as tight: the lower ones stay
    return best


def _groups(too_far: NDArray[np.bool_], inside: NDArray[np.bool_], faulty: int) -> Iterator[NDArray[np.bool_]]:
    """The largest groups of rows inside, at most `faulty` fewer, in which no two are too far apart."""
    conflicts = (too_far & inside).sum(axis=1) * inside
    i = int(conflicts.argmax())
    if conflicts[i] == 0:
        yield inside
    elif conflicts.sum() <= 2 * faulty * conflicts[i]:  # each row left out ends as many conflicts as i has at most
        for left_out in ([i], np.flatnonzero(too_far[i] & inside)):  # either i, or all that it conflicts with
            if len(left_out) <= faulty:
                rest = inside.copy()
                rest[left_out] = False
                yield from _groups(too_far, rest, faulty - len(left_out))
