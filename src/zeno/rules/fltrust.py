"""FLTrust (Cao et al., NDSS 2021): weigh candidates by how far they point along the server's gradient."""

from dataclasses import dataclass

import torch

from zeno.rules.linalg.passes import squared_norms
from zeno.rules.rule import Aggregate, Oracle, Rows, Rule, Samples


@dataclass(frozen=True)
class FLTrust(Rule):
    """Average weighted by max(0, cos(x_i, g)), each candidate rescaled to ||g||; g is the server's gradient.

    Tolerates any number of faulty workers, as long as g can be trusted. The update is zero if all point away from g.
    """

    batch_size: Samples = 100  # samples for the server's gradient

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        gradient = rows.server_gradient(oracle)
        norms, gradient_norm = rows.squared_norms().sqrt(), squared_norms(gradient[None])[0].sqrt()
        cosines = (rows.dots(gradient) / (norms * gradient_norm)).nan_to_num_(0).clamp_(-1, 1)  # 0 for a zero vector
        trust = cosines.clamp(min=0)
        weights = torch.where(trust > 0, trust / trust.sum().clamp(min=1e-300) * gradient_norm / norms, 0)
        return rows.weighted_sum(weights, scores=cosines)
