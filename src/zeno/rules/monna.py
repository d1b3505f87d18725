"""MoNNA (Farhadkhani et al., ICML 2023): the mean of the nearest neighbours of a trusted gradient."""

from dataclasses import dataclass

import torch
from torch import Tensor

from zeno.rules.rule import Aggregate, Oracle, Rows, Rule, Samples, Tolerated, keep_lowest


@dataclass(frozen=True)
class MoNNA(Rule):
    """Average of the m - faulty candidates nearest the server's gradient; tolerates any `faulty` < m."""

    faulty: Tolerated
    batch_size: Samples = 100  # samples for the server's gradient

    def prepare(self, oracle: Oracle, state: object) -> None:
        oracle.gradient()

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        rows.require(self.faulty + 1, "more than faulty", faulty=self.faulty)
        trusted = rows.server_gradient(oracle)
        distances = squared_distances_to(rows, trusted)
        return rows.average(keep_lowest(distances, rows.n - rows.remaining(self.faulty)), scores=-distances)


def squared_distances_to(rows: Rows, vector: Tensor) -> Tensor:
    """||row - vector||^2 -> [n] in float64."""
    distances = torch.zeros(rows.n, dtype=torch.float64, device=vector.device)
    for columns, block in rows.blocks():
        distances += (block - vector[columns].to(block.dtype)).double().square().sum(dim=1)
    return distances
