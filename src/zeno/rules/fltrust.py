"""FLTrust (Cao et al., NDSS 2021): candidates count as much as they point where the server's own gradient does."""

from dataclasses import dataclass

import torch

from zeno.rules.linalg.passes import squared_norms
from zeno.rules.rows import OnRows, Rows
from zeno.rules.rule import Aggregate, Descent, check_count, own_gradient


@dataclass(frozen=True)
class FLTrust(OnRows):
    """Average weighted by max(0, cos(x_i, g)), each candidate rescaled to ||g||; g is the server's own gradient.

    Bears any number of faulty workers, as long as g can be trusted. No update, that is zero, if all point away.
    """

    batch_size: int = 100  # samples of the server's own gradient

    def __post_init__(self) -> None:
        check_count(self, "batch_size", self.batch_size, 1)

    def on_rows(self, rows: Rows, descent: Descent | None, state: object) -> Aggregate:
        own = own_gradient(self, descent, rows.d)
        norms = rows.squared_norms().sqrt()
        rows.lowered(self, rows.m - 1)
        own_norm = squared_norms(own[None])[0].sqrt()
        cosines = (rows.dots(own) / (norms * own_norm)).nan_to_num_(0).clamp_(-1, 1)  # a zero points nowhere
        trust = cosines.clamp(min=0)
        weights = torch.where(trust > 0, trust / trust.sum().clamp(min=1e-300) * own_norm / norms, 0)
        return rows.result(rows.combine(weights), trust > 0, cosines)
