"""MDA, minimum diameter averaging (El Mhamdi et al., 2020): the tightest group that is large enough."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from zeno.rules.rows import OnRows, Rows
from zeno.rules.rule import Aggregate, Descent, check_count, check_majority

MOST_TIES = 1000  # groups of the same diameter that are looked at: there are few, unless somebody made them


@dataclass(frozen=True)
class MDA(OnRows):
    """Average of the m - faulty candidates whose largest distance is least; bears `faulty` workers, a minority.

    Among groups of the same diameter, the one with the least sum of squared distances. The search is exact; its
    cost grows with 2 ** faulty at worst.
    """

    faulty: int

    def __post_init__(self) -> None:
        check_count(self, "faulty", self.faulty, 0)

    def on_rows(self, rows: Rows, descent: Descent | None, state: object) -> Aggregate:
        check_majority(self, "faulty", self.faulty, rows.size)
        distances = rows.squared_distances()
        kept = torch.from_numpy(tightest(distances.cpu().numpy(), rows.lowered(self, self.faulty))).to(distances.device)
        return rows.result(rows.average(kept), kept)


def tightest(distances: NDArray[np.float64], faulty: int) -> NDArray[np.bool_]:
    """[n] bool: the n - faulty rows of least diameter."""
    n = len(distances)
    widths = np.unique(distances)
    low, high = 0, len(widths) - 1  # widths[high] is wide enough for all; find the least that is wide enough
    while low < high:
        middle = (low + high) // 2
        if next(_groups(distances > widths[middle], faulty), None) is not None:
            high = middle
        else:
            low = middle + 1
    best, least = np.ones(n, dtype=np.bool_), np.inf
    for group in islice(_groups(distances > widths[low], faulty), MOST_TIES):
        spread = distances[group][:, group].sum()
        if spread < least:
            best, least = group, spread
    for i in reversed(np.flatnonzero(best)):  # more rows than needed are as tight: the lower ones stay
        if best.sum() > n - faulty:
            best[i] = False
    return best


def _groups(too_far: NDArray[np.bool_], faulty: int) -> Iterator[NDArray[np.bool_]]:
    """All largest groups that at most `faulty` rows are left out of and in which no two rows are too far apart."""
    inside = np.ones(len(too_far), dtype=np.bool_)

    def search(faulty: int) -> Iterator[NDArray[np.bool_]]:
        conflicts = (too_far & inside).sum(axis=1) * inside
        i = int(conflicts.argmax())
        if conflicts[i] == 0:
            yield inside.copy()
        elif conflicts.sum() <= 2 * faulty * conflicts[i]:  # each row left out ends as many conflicts as i has at most
            others = too_far[i] & inside
            for left_out in ([i], np.flatnonzero(others)):  # either i, or all that it conflicts with
                if len(left_out) <= faulty:
                    inside[left_out] = False
                    yield from search(faulty - len(left_out))
                    inside[left_out] = True

    return search(faulty)
