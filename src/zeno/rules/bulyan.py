"""Bulyan (El Mhamdi, Guerraoui and Rouault, ICML 2018): Krum chooses rows, the median chooses values among them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from zeno.rules.krum import lowest, neighbourhoods
from zeno.rules.linalg.sorting_network import Columns
from zeno.rules.rows import OnRows, Rows
from zeno.rules.rule import Aggregate, Descent, check_count


@dataclass(frozen=True)
class Bulyan(OnRows):
    """Mean of the m - 4 faulty values nearest the median of m - 2 faulty candidates, which Krum chose one by one.

    Bears `faulty` faulty workers out of at least 4 * faulty + 3.
    """

    faulty: int

    def __post_init__(self) -> None:
        check_count(self, "faulty", self.faulty, 0)

    def on_rows(self, rows: Rows, descent: Descent | None, state: object) -> Aggregate:
        if rows.size < 4 * self.faulty + 3:
            raise ValueError(
                f"Bulyan needs at least 4 * faulty + 3 candidates. Found {rows.size} with faulty={self.faulty}. "
                "Lower faulty or add workers."
            )
        distances = rows.squared_distances()
        faulty = rows.lowered(self, self.faulty)
        kept = choose(distances, faulty, rows.n - 2 * faulty)
        return rows.result(rows.only(kept).columnwise(lambda: Columns("nearest_median", 2 * faulty)), kept)


def choose(squared_distances: Tensor, faulty: int, num: int) -> Tensor:
    """[n] bool: `num` rows, each the Krum of those that the ones before it left."""
    left, among_all = list(range(len(squared_distances))), neighbourhoods(squared_distances, faulty)
    kept = torch.zeros(len(left), dtype=torch.bool, device=squared_distances.device)
    for _ in range(num):
        sums = neighbourhoods(squared_distances[left][:, left], faulty)
        kept[left.pop(int(lowest(1, sums, among_all[left]).nonzero()))] = True
    return kept
