"""MDA, minimum diameter averaging (El Mhamdi et al., 2020): the tightest group that is large enough."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from zeno.rules.rule import Aggregate, Oracle, Rows, Rule, Tolerated

MOST_NODES = 5000  # of each search: those of workers that do not collude need fewer, up to about 100 of them
MOST_TIES = 1000  # groups of the same diameter that are compared: there are few, unless an attacker made them
GIVEN_UP = "MDA gave up its search: the diameter of the group is at most twice the smallest one"

Group = NDArray[np.bool_]  # [n]: the rows that are in it


@dataclass(frozen=True)
class MDA(Rule):
    """Average of the subset of m - faulty candidates with the smallest diameter; tolerates a faulty minority.

    Among groups of the same diameter, the one with the least sum of squared distances. The search is exact for
    ordinary candidates. Its cost would grow with 2 ** faulty at worst, for workers that collude: it is given up after a
    fixed number of steps. Then the diameter of the group is at most twice the smallest one, and the `note` of the
    aggregate says so.
    """

    faulty: Tolerated

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        rows.require(2 * self.faulty + 1, "more than 2 * faulty", faulty=self.faulty)
        distances = rows.squared_distances()
        kept, exact = tightest(distances.cpu().numpy(), rows.remaining(self.faulty))
        result = rows.average(torch.from_numpy(kept).to(distances.device))
        return result if exact else result._replace(note=GIVEN_UP)


def tightest(distances: NDArray[np.float64], faulty: int) -> tuple[Group, bool]:
    """The n - faulty rows of least diameter; False if there may be a group that is up to half as wide."""
    ball, exact = smallest_ball(distances, faulty), True
    widths = np.unique(distances)
    most = int(np.searchsorted(widths, distances[ball][:, ball].max()))

    def is_wide_enough(width: float) -> bool:
        nonlocal exact
        for group in islice(_groups(distances > width, faulty), 1):
            exact = exact and group is not None
            return group is not None
        return False

    least = widths[bisect_left(widths, True, hi=most, key=is_wide_enough)]  # the ball is not wider than `most`
    tied = [group for group in islice(_groups(distances > least, faulty), MOST_TIES) if group is not None]
    best = min(tied or [ball], key=lambda group: distances[group][:, group].sum())
    best[np.flatnonzero(best)[len(best) - faulty :]] = False  # more rows than needed are as tight: the lower ones stay
    return best, exact


def smallest_ball(distances: NDArray[np.float64], faulty: int) -> Group:
    """The n - faulty rows nearest to one of them. No two are further apart than twice the least diameter."""
    order = np.argsort(distances, axis=1, kind="stable")[:, : len(distances) - faulty]
    ball = np.zeros(len(distances), dtype=np.bool_)
    ball[order[np.take_along_axis(distances, order, axis=1)[:, -1].argmin()]] = True
    return ball


def _groups(too_far: NDArray[np.bool_], faulty: int) -> Iterator[Group | None]:
    """The largest groups of rows, at most `faulty` fewer than all, in which no two are too far apart.

    Ends with None if the search was given up.
    """
    left = [(np.ones(len(too_far), dtype=np.bool_), faulty)]  # to try: the rows inside, and how many may be left out
    for _ in range(MOST_NODES):
        if not left:
            return
        inside, num = left.pop()
        conflicts = (too_far & inside).sum(axis=1) * inside
        i = int(conflicts.argmax())
        if conflicts[i] == 0:
            yield inside
        elif conflicts.sum() <= 2 * num * conflicts[i]:  # each row left out ends as many conflicts as i has at most
            conflicting = np.flatnonzero(too_far[i] & inside)
            for out in (
                conflicting,
                [i],
            ):  # the last one is tried first: without i, or without all that it conflicts with
                if len(out) <= num:
                    rest = inside.copy()
                    rest[out] = False
                    left.append((rest, num - len(out)))
    yield None
