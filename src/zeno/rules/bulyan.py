"""Bulyan (El Mhamdi, Guerraoui and Rouault, ICML 2018): Krum chooses rows, the median chooses values among them."""

from dataclasses import dataclass

import torch

from zeno.rules.krum import neighbourhoods
from zeno.rules.rule import Aggregate, Oracle, Rows, Rule, Tolerated, keep_lowest


@dataclass(frozen=True)
class Bulyan(Rule):
    """Mean of the m - 4 * faulty values nearest the median, of m - 2 * faulty candidates selected by repeated Krum.

    Tolerates `faulty` faulty workers out of at least 4 * faulty + 3.
    """

    faulty: Tolerated

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        rows.require(4 * self.faulty + 3, "at least 4 * faulty + 3", faulty=self.faulty)
        distances = rows.squared_distances()
        faulty = rows.remaining(self.faulty)
        left, among_all = list(range(rows.n)), neighbourhoods(distances, faulty)
        chosen = torch.zeros(rows.n, dtype=torch.bool, device=rows.device)
        for _ in range(rows.n - 2 * faulty):  # each time the Krum of those that are left
            sums = neighbourhoods(distances[left][:, left], faulty)
            chosen[left.pop(int(keep_lowest(sums, 1, ties=among_all[left]).nonzero()))] = True
        # columnwise takes the unusable candidates off its trim, but they are not among the chosen.
        return rows.only(chosen).columnwise("nearest_median", 2 * faulty + rows.num_unusable)
