"""MoNNA (Farhadkhani et al., ICML 2023): the mean of the nearest neighbours of a gradient that is trusted."""

from dataclasses import dataclass

import torch

from zeno.rules.rows import OnRows, Rows, keep_lowest
from zeno.rules.rule import Aggregate, Descent, check_count, check_more, own_gradient


@dataclass(frozen=True)
class MoNNA(OnRows):
    """Average of the m - faulty candidates nearest the server's own gradient; bears `faulty` workers of any m."""

    faulty: int
    batch_size: int = 100  # samples of the server's own gradient

    def __post_init__(self) -> None:
        check_count(self, "faulty", self.faulty, 0)
        check_count(self, "batch_size", self.batch_size, 1)

    def on_rows(self, rows: Rows, descent: Descent | None, state: object) -> Aggregate:
        check_more(self, "faulty", self.faulty, rows.size)
        trusted = own_gradient(self, descent, rows.d)
        keep = rows.n - rows.lowered(self, self.faulty)
        distances = torch.zeros(rows.n, dtype=torch.float64, device=trusted.device)
        for columns, block in rows.blocks():
            distances += (block - trusted[columns].to(block.dtype)).double().square().sum(dim=1)
        kept = keep_lowest(distances, keep)
        return rows.result(rows.average(kept), kept, -distances)
