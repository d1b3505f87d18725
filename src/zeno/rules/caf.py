"""CAF, covariance bound agnostic filter (Allouah et al., 2025): weigh down the direction of most variance."""

from dataclasses import dataclass

import torch
from torch import Tensor

from zeno.rules.linalg.eigen import top
from zeno.rules.rule import Aggregate, Oracle, Rows, Rule, Tolerated


@dataclass(frozen=True)
class CAF(Rule):
    """Mean with weights reduced repeatedly along the direction of largest variance; tolerates a faulty minority.

    c_i <- c_i (1 - t_i / max t), t_i = <x_i - mean_c, top eigenvector>^2, while the c sum to more than m - 2 faulty.
    """

    faulty: Tolerated

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        rows.require(2 * self.faulty + 1, "more than 2 * faulty", faulty=self.faulty)
        products = rows.products()
        return rows.weighted_sum(filtered(products, rows.n - 2 * rows.remaining(self.faulty)))


def filtered(products: Tensor, least_sum: int) -> Tensor:
    """Weights [n] that sum to 1, from <row_i - c, row_j - c>."""
    c = torch.ones_like(products[0])
    best, least = c / c.sum(), torch.inf
    for _ in range(len(c)):  # each round ends with one more weight of 0
        mean = c / c.sum()
        at = products @ mean
        centred = products - at[:, None] - at + mean @ at  # <row_i - mean_c, row_j - mean_c>
        root = mean.sqrt()
        covariance = root[:, None] * centred * root  # with the eigenvalues of the weighted covariance
        value, vector = top(covariance)
        if float(value) < least:
            best, least = mean, float(value)
        along = (centred @ (root * vector)) * (c > 0)
        along = (along / along.abs().max().clamp(min=1e-300)).square()  # t, up to a factor
        if float(c.sum()) <= least_sum or float(along.max()) <= 0:
            break
        c = c * (1 - along / along.max())
    return best
