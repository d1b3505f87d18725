"""SignGuard (Xu et al., ICDCS 2022): gradients of ordinary size whose signs are like those of most others."""

from dataclasses import dataclass

import torch
from torch import Tensor

from zeno.rules.rows import OnRows, Rows
from zeno.rules.rule import Aggregate, Descent

LEAST, MOST = 0.1, 3.0  # of the median norm


@dataclass(frozen=True)
class SignGuard(OnRows):
    """Average, clipped to the median norm, of the largest cluster by signs among norms within 0.1 to 3 of the median.

    The signs of all coordinates are counted, where the paper draws a tenth of them. Bears a faulty minority.
    """

    def on_rows(self, rows: Rows, descent: Descent | None, state: object) -> Aggregate:
        norms = rows.squared_norms().sqrt()
        rows.lowered(self, rows.m - 1)
        ordered = norms.sort().values
        median = (ordered[(len(norms) - 1) // 2] + ordered[len(norms) // 2]) / 2
        kept = (norms >= LEAST * median) & (norms <= MOST * median) & largest_cluster(_signs(rows))
        if not bool(kept.any()):  # two camps that exclude each other
            kept = (norms >= LEAST * median) & (norms <= MOST * median)
        clipped = torch.where(norms > 0, median / norms, 1).clamp(max=1)
        return rows.result(rows.combine(clipped * kept / kept.sum()), kept)


def _signs(rows: Rows) -> Tensor:
    """Shares of positive, zero and negative numbers in each row: [n, 3]."""
    counts = torch.zeros(rows.n, 2, dtype=torch.float64, device=rows.candidates.tensor.device)
    for _, block in rows.blocks():
        counts += torch.stack([(block > 0).sum(dim=1), (block < 0).sum(dim=1)], dim=1)
    positive, negative = (counts / rows.d).unbind(dim=1)
    return torch.stack([positive, 1 - positive - negative, negative], dim=1)


def largest_cluster(points: Tensor) -> Tensor:
    """[n] bool: the largest cluster by mean shift, the tighter one of equals.

    Points are together within the mean distance of a point to the nearest half.
    """
    bandwidth = _distances(points, points).sort(dim=1).values[:, (len(points) - 1) // 2].mean() + 1e-9
    centres = points
    for _ in range(100):
        near = (_distances(centres, points) <= bandwidth).double()
        shifted = near @ points / near.sum(dim=1, keepdim=True)
        if torch.equal(shifted, centres):
            break
        centres = shifted
    together = (_distances(centres, centres) <= bandwidth).double()  # [n, n]: the cluster of each
    widths = ((together @ _distances(points, points)) * together).sum(dim=1).round(decimals=9)  # equal up to rounding
    sizes = together.sum(dim=1)
    return together[int(torch.where(sizes == sizes.max(), widths, torch.inf).argmin())].bool()


def _distances(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, None] - b).square().sum(dim=2).sqrt()
