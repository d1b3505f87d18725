"""Clipping to a fixed norm: a pre-aggregator."""

from dataclasses import dataclass

import torch

from zeno.rules.rows import Rows
from zeno.rules.rule import check_positive


@dataclass(frozen=True)
class Clip:
    """Each candidate is scaled down to `norm` if it is longer."""

    norm: float

    def __post_init__(self) -> None:
        check_positive(self, "norm", self.norm)

    def before(self, rows: Rows, state: object) -> tuple[Rows, object]:
        norms = rows.squared_norms().sqrt()
        rows.lowered(self, rows.m - 1)
        return rows.mixed(torch.diag((self.norm / norms).clamp(max=1))), None
