"""Krum (Blanchard et al., NeurIPS 2017): the candidate in the densest neighbourhood."""

from dataclasses import dataclass

import torch
from torch import Tensor

from zeno.rules.rows import OnRows, Rows
from zeno.rules.rule import Aggregate, Descent, check_count


@dataclass(frozen=True)
class Krum(OnRows):
    """The candidate with the least sum of squared distances to its m - faulty - 2 nearest others.

    Bears `faulty` faulty workers out of more than 2 * faulty + 2.
    """

    faulty: int  # b in the Zeno paper, f in Krum's

    def __post_init__(self) -> None:
        check_count(self, "faulty", self.faulty, 0)

    def on_rows(self, rows: Rows, descent: Descent | None, state: object) -> Aggregate:
        check_neighbours(self, self.faulty, rows.size)
        distances = rows.squared_distances()
        sums = neighbourhoods(distances, rows.lowered(self, self.faulty))
        kept = lowest(1, sums, distances.sum(dim=1))
        return rows.result(rows.average(kept), kept, -sums)


def check_neighbours(rule: object, faulty: int, found: int) -> None:
    """Refuses more faulty rows than a densest neighbourhood can do without."""
    if 2 * faulty + 2 >= found:
        raise ValueError(
            f"{type(rule).__name__} needs more than 2 * faulty + 2 candidates. Found {found} with faulty={faulty}. "
            "Lower faulty or add workers."
        )


def neighbourhoods(squared_distances: Tensor, faulty: int) -> Tensor:
    """Sum of squared distances of each row to its n - faulty - 2 nearest others, at least one: [n]."""
    # Column 0 of each sort is the row itself, at distance 0.
    nearest = squared_distances.sort(dim=1).values[:, 1:]
    return nearest[:, : max(1, len(squared_distances) - faulty - 2)].sum(dim=1)


def lowest(num: int, sums: Tensor, then: Tensor) -> Tensor:
    """[n] bool: the `num` rows of least sum.

    Two rows that are each other's only neighbour tie: then the other measure decides, and at last the lower row.
    """
    order = then.argsort(stable=True)
    kept = torch.zeros(len(sums), dtype=torch.bool, device=sums.device)
    kept[order[sums[order].argsort(stable=True)[:num]]] = True
    return kept
