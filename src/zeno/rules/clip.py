"""Clipping to a fixed norm: a pre-aggregator."""

from dataclasses import dataclass

import torch

from zeno.rules.rule import Positive, PreAggregator, Rows


@dataclass(frozen=True)
class Clip(PreAggregator):
    """Each candidate is scaled down to `norm` if it is longer."""

    norm: Positive

    def before(self, rows: Rows, state: object) -> tuple[Rows, object]:
        norms = rows.squared_norms().sqrt()
        return rows.mixtures(torch.diag((self.norm / norms).clamp(max=1))), None
