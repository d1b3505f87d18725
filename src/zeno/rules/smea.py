"""SMEA, smallest maximum eigenvalue averaging (Allouah et al., ICML 2023): the group that varies least."""

from dataclasses import dataclass
from itertools import combinations, islice
from math import comb

import torch
from torch import Tensor

from zeno.rules.linalg.eigen import top
from zeno.rules.rule import Aggregate, Oracle, Rows, Rule, Tolerated

MOST_GROUPS = 200_000
AT_ONCE = 1024


@dataclass(frozen=True)
class SMEA(Rule):
    """Average of the m - faulty candidates with the smallest top covariance eigenvalue; tolerates a faulty minority.

    Tries every group: 4,845 of them for 4 faulty of 20, 125,970 for 8.
    """

    faulty: Tolerated

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        rows.require(2 * self.faulty + 1, "more than 2 * faulty", faulty=self.faulty)
        if (groups := comb(rows.size, self.faulty)) > MOST_GROUPS:
            raise ValueError(
                f"SMEA tries every group of candidates. Found {groups:.1e} groups with faulty={self.faulty} of "
                f"{rows.size}, more than {MOST_GROUPS}. Use CAF, which needs no search."
            )
        products = rows.products()
        return rows.average(least_varying(products, rows.n - rows.remaining(self.faulty)))


def least_varying(products: Tensor, num: int) -> Tensor:
    """[n] bool: the `num` rows whose covariance has the least top eigenvalue, from <row_i - c, row_j - c>."""
    groups, best, least = combinations(range(len(products)), num), torch.arange(num), torch.inf
    for _ in range(0, comb(len(products), num), AT_ONCE):
        members = torch.tensor(list(islice(groups, AT_ONCE)), device=products.device)  # [k, num]
        centred = products[members[:, :, None], members[:, None, :]]
        centred = centred - centred.mean(dim=1, keepdim=True)
        centred = centred - centred.mean(dim=2, keepdim=True)
        values, _ = top(centred)
        if float(values.min()) < least:
            best, least = members[values.argmin()], float(values.min())
    kept = torch.zeros(len(products), dtype=torch.bool, device=products.device)
    kept[best] = True
    return kept
