"""ByGARS (Regatti, Chen and Gupta, 2020), in its form ByGARS++: reputations, which can be negative, as weights.

The reputation q of a worker is the decayed mean of the inner products of its candidates with the server's gradient g:

    q_i <- (1 - rate) * q_i + rate * <u_i, g>
    update = sum_i q_i u_i / sum_i |q_i|
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from zeno.rules.linalg.passes import squared_norms
from zeno.rules.rule import Aggregate, Change, Oracle, Rate, Rows, Rule, Samples


@dataclass(frozen=True)
class ByGARS(Rule):
    """Sum of the candidates weighted by reputation; those of workers that point away from the server's are subtracted.

    Tolerates any number of faulty workers, and makes use of those that flip the sign. Two choices keep the update as
    long as a gradient, where the paper's sum_i q_i u_i has the size of a gradient cubed: candidates are clipped to the
    length of g, and the sum is divided by sum |q_i|. So weights can be below 0.
    """

    rate: Rate = 0.05  # alpha in the paper, where it decays
    batch_size: Samples = 64  # samples for the server's gradient

    def for_workers(self, state: object, change: Change) -> object:
        return change(state, 0.0) if isinstance(state, Tensor) else state

    def prepare(self, oracle: Oracle, state: object) -> None:
        oracle.gradient()

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        gradient = rows.server_gradient(oracle)
        norms, limit = rows.squared_norms().sqrt(), squared_norms(gradient[None])[0].sqrt()
        factors = torch.where(norms > limit, limit / norms, 1.0)  # that clip a row to the length of g
        before = rows.remembered(state, start=0.0)
        products = rows.by_worker(factors * rows.dots(gradient), without=before)
        reputation = before + self.rate * (products - before)  # q
        of_rows = rows.by_row(reputation)
        weights = of_rows / of_rows.abs().sum().clamp(min=1e-300) * factors
        return rows.weighted_sum(weights, scores=of_rows, state=reputation)
