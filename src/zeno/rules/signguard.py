"""SignGuard (Xu et al., ICDCS 2022): average gradients of ordinary size whose signs agree with most others."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from zeno.rules.rule import Aggregate, Oracle, Rows, Rule

LEAST, MOST = 0.1, 3.0  # of the median norm


@dataclass(frozen=True)
class SignGuard(Rule):
    """Average of the largest cluster by sign counts, without norms far from the median; clipped to the median norm.

    The signs of all coordinates are counted, where the paper draws a tenth of them. Tolerates a faulty minority.
    """

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        norms = rows.squared_norms().sqrt()
        ordered = norms.sort().values
        median = (ordered[(len(norms) - 1) // 2] + ordered[len(norms) // 2]) / 2
        ordinary = (norms >= LEAST * median) & (norms <= MOST * median)
        agreeing = ordinary & largest_cluster(_signs(rows))
        kept = agreeing if bool(agreeing.any()) else ordinary  # none, where two camps exclude each other
        clipped = torch.where(norms > 0, median / norms, 1).clamp(max=1)
        return rows.weighted_sum(clipped * kept / kept.sum())


def _signs(rows: Rows) -> Tensor:
    """Shares of positive, zero and negative numbers in each row: [n, 3]."""
    counts = torch.zeros(rows.n, 2, dtype=torch.float64, device=rows.device)
    for _, block in rows.blocks():
        counts += torch.stack([(block > 0).sum(dim=1), (block < 0).sum(dim=1)], dim=1)
    positive, negative = (counts / rows.d).unbind(dim=1)
    return torch.stack([positive, 1 - positive - negative, negative], dim=1)


def largest_cluster(points: Tensor) -> Tensor:
    """[n] bool: the largest cluster by mean shift, the tighter one of equals.

    Points are together within the mean distance of a point to the nearest half.
    """
    distances = partial(torch.cdist, compute_mode="donot_use_mm_for_euclid_dist")
    bandwidth = distances(points, points).sort(dim=1).values[:, (len(points) - 1) // 2].mean() + 1e-9
    centres = points
    for _ in range(100):
        near = (distances(centres, points) <= bandwidth).double()
        shifted = near @ points / near.sum(dim=1, keepdim=True)
        if torch.equal(shifted, centres):
            break
        centres = shifted
    together = (distances(centres, centres) <= bandwidth).double()  # [n, n]: the cluster of each
    widths = ((together @ distances(points, points)) * together).sum(dim=1).round(decimals=9)  # equal up to rounding
    sizes = together.sum(dim=1)
    return together[int(torch.where(sizes == sizes.max(), widths, torch.inf).argmin())].bool()
