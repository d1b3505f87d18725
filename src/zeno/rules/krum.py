"""Krum (Blanchard et al., NeurIPS 2017): the candidate in the densest neighbourhood."""

from dataclasses import dataclass

import torch
from torch import Tensor

from zeno.rules.rule import Aggregate, Descent, TooFewUsable, check_count, usable_rows


@dataclass(frozen=True)
class Krum:
    """The candidate with the least sum of squared distances to its m - faulty - 2 nearest others.

    Bears `faulty` faulty workers out of more than 2 * faulty + 2.
    """

    faulty: int  # b in the Zeno paper, f in Krum's

    def __post_init__(self) -> None:
        check_count(self, "faulty", self.faulty, 0)

    def __call__(self, candidates: Tensor, descent: Descent | None = None, state: object = None) -> Aggregate:
        usable = usable_rows(candidates)
        m = len(usable)
        if 2 * self.faulty + 2 >= m:
            raise ValueError(
                f"Krum needs more than 2 * faulty + 2 candidates. Found {m} with faulty={self.faulty}. "
                "Lower faulty or add workers."
            )
        if int((~usable).sum()) > self.faulty:
            raise TooFewUsable(self, m - self.faulty, usable)

        # Column 0 of each sort is the candidate itself, at distance 0.
        nearest = squared_distances(candidates[usable]).sort(dim=1).values[:, 1 : m - self.faulty - 1]
        sums = nearest.sum(dim=1)
        scores = torch.full((m,), -torch.inf, dtype=torch.float64, device=candidates.device)
        scores[usable] = -sums

        best = int(usable.nonzero()[sums.argsort(stable=True)[0]])  # stable: the lower row wins a tie
        kept = torch.zeros_like(usable)
        kept[best] = True
        return Aggregate(candidates[best].clone(), scores, kept)


def squared_distances(rows: Tensor) -> Tensor:
    """Squared distance of every row [n, d] to every other -> [n, n] in float64.

    From differences, not from a Gram matrix: late in training candidates agree in their first digits, and
    norms that nearly cancel would pick the wrong row.
    """
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for columns in rows.split(8192, dim=1):  # few enough to stay in cache as float64
        columns = columns.double()
        for i, row in enumerate(columns):
            total[i] += (columns - row).square().sum(dim=1)
    return total
