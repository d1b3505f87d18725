"""FLTrust (Cao et al., NDSS 2021): weigh candidates by how far they point along the server's gradient."""

from dataclasses import dataclass

import torch
from torch import Tensor

from zeno.rules.linalg.passes import squared_norms
from zeno.rules.rule import Aggregate, Oracle, Rows, Rule, Samples


@dataclass(frozen=True)
class FLTrust(Rule):
    """Average weighted by max(0, cos(x_i, g)), each candidate rescaled to ||g||; g is the server's gradient.

    Tolerates any number of faulty workers, as long as g can be trusted. The update is zero if all point away from g.
    """

    batch_size: Samples = 100  # samples for the server's gradient

    def prepare(self, oracle: Oracle, state: object) -> None:
        oracle.gradient()

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        gradient = rows.server_gradient(oracle)
        norms, length = rows.squared_norms().sqrt(), squared_norms(gradient[None])[0].sqrt()
        cosines = cosines_of(rows.dots(gradient), norms, length)
        return rows.weighted_sum(trust(cosines, norms, length), scores=cosines)


def cosines_of(dots: Tensor, norms: Tensor, length: Tensor) -> Tensor:
    """[n] from the products with a vector of this length; 0 for a zero vector."""
    return (dots / (norms * length)).nan_to_num(0, 0, 0).clamp(-1, 1)


def trust(cosines: Tensor, norms: Tensor, length: Tensor) -> Tensor:
    """The weights [n] of rows of these norms, each rescaled to the length."""
    positive = cosines.clamp(min=0)
    return torch.where(positive > 0, positive / positive.sum().clamp(min=1e-300) * length / norms, 0)
