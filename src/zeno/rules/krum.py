"""Krum (Blanchard et al., NeurIPS 2017): the candidate in the densest neighbourhood."""

from dataclasses import dataclass

from torch import Tensor

from zeno.rules.rule import Aggregate, Oracle, Rows, Rule, Tolerated, keep_lowest


@dataclass(frozen=True)
class Krum(Rule):
    """Candidate with the smallest sum of squared distances to its m - faulty - 2 nearest; tolerates a faulty minority.

    Tolerates `faulty` faulty workers out of more than 2 * faulty + 2.
    """

    faulty: Tolerated  # b in the Zeno paper, f in Krum's

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        rows.require(2 * self.faulty + 3, "more than 2 * faulty + 2", faulty=self.faulty)
        distances = rows.squared_distances()  # [n, n]
        sums = neighbourhoods(distances, rows.remaining(self.faulty))
        # Two rows that are each other's only neighbour tie: then the sum of all distances decides.
        return rows.average(keep_lowest(sums, 1, ties=distances.sum(dim=1)), scores=-sums)


def neighbourhoods(squared_distances: Tensor, faulty: int) -> Tensor:
    """Sum of squared distances of each row to its n - faulty - 2 nearest others, at least one: [n]."""
    # Column 0 of each sort is the row itself, at distance 0.
    nearest = squared_distances.sort(dim=1).values[:, 1:]
    return nearest[:, : max(1, len(squared_distances) - faulty - 2)].sum(dim=1)
