"""SMEA, smallest maximum eigenvalue averaging (Allouah et al., ICML 2023): the group that varies least."""

from dataclasses import dataclass
from itertools import combinations, islice
from math import comb

import torch
from torch import Tensor

from zeno.rules.linalg.eigen import top
from zeno.rules.rows import OnRows, Rows
from zeno.rules.rule import Aggregate, Descent, check_count, check_majority

MOST_GROUPS = 200_000
AT_ONCE = 1024


@dataclass(frozen=True)
class SMEA(OnRows):
    """Average of the m - faulty candidates whose covariance has the least top eigenvalue; bears a faulty minority.

    Tries every group: 4,845 of them for 4 faulty of 20, 125,970 for 8.
    """

    faulty: int

    def __post_init__(self) -> None:
        check_count(self, "faulty", self.faulty, 0)

    def on_rows(self, rows: Rows, descent: Descent | None, state: object) -> Aggregate:
        check_majority(self, "faulty", self.faulty, rows.size)
        if comb(rows.size, self.faulty) > MOST_GROUPS:
            raise ValueError(
                f"SMEA tries every group of candidates. Found {comb(rows.size, self.faulty):.1e} groups with "
                f"faulty={self.faulty} of {rows.size}, more than {MOST_GROUPS}. Use CAF, which needs no search."
            )
        products = rows.products()
        kept = least_varying(products, rows.n - rows.lowered(self, self.faulty))
        return rows.result(rows.average(kept), kept)


def least_varying(products: Tensor, num: int) -> Tensor:
    """[n] bool: the `num` rows whose covariance has the least top eigenvalue, from <row_i - c, row_j - c>."""
    groups, best, least = combinations(range(len(products)), num), torch.arange(num), torch.inf
    while chunk := list(islice(groups, AT_ONCE)):
        members = torch.tensor(chunk, device=products.device)  # [k, num]
        centred = products[members[:, :, None], members[:, None, :]]
        centred = centred - centred.mean(dim=1, keepdim=True)
        centred = centred - centred.mean(dim=2, keepdim=True)
        values, _ = top(centred)
        if float(values.min()) < least:
            best, least = members[values.argmin()], float(values.min())
    kept = torch.zeros(len(products), dtype=torch.bool, device=products.device)
    kept[best] = True
    return kept
