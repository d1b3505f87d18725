"""Zeno++ (Xie, Koyejo and Gupta, ICML 2020): accept a candidate, as it arrives, if it still helps the model of now.

The server has a gradient v of its own, which it computes every so many arrivals. A candidate u is rescaled to the
length of v, and accepted if it lowers the loss to first order by enough:

    u' = u * ||v|| / ||u||
    accept where  lr * <v, u'> - rho * ||u'||^2 + lr * epsilon >= 0

Since ||u'|| = ||v||, this is a limit on the cosine of u and v, of rho / lr - epsilon / ||v||^2.
"""

from dataclasses import dataclass

import torch

from zeno.rules.linalg.passes import squared_norms
from zeno.rules.rule import Aggregate, NonNegative, Oracle, PositiveCount, Rows, Rule, Samples
from zeno.rules.trusted_gradient import is_due, likeness_to, trusted_gradient


@dataclass(frozen=True)
class ZenoPP(Rule):
    """Zeno++: average of the candidates along the server's gradient, rescaled to its length; for asynchronous runs.

    Tolerates any number of faulty workers. Each candidate is judged by itself, so an asynchronous run with `buffer=1`
    is the published algorithm. The update is zero if no candidate is accepted. One of length 0 is not accepted.
    """

    rho: NonNegative = 0.001
    epsilon: NonNegative = 0.0
    every: PositiveCount = 10  # candidates that are judged by one gradient of the server: k in the paper
    batch_size: Samples = 128  # samples for the server's gradient

    def prepare(self, oracle: Oracle, state: object) -> None:
        if is_due(state, self.every):
            oracle.gradient()

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        oracle = rows.require_oracle(oracle)
        v, state = trusted_gradient(rows, oracle, state, self.every)
        norms, length = rows.squared_norms().sqrt(), squared_norms(v[None])[0].sqrt()
        factors = torch.where(norms > 0, length / norms, 0)  # u' = factor * u
        lr = float(torch.as_tensor(oracle.lr, dtype=torch.float64).mean())  # one rate, or one for each parameter
        scores = factors * rows.slopes(v, oracle) - self.rho * (factors * norms).square() + lr * self.epsilon
        accepted = (scores >= 0) & (norms > 0)
        weights = torch.where(accepted, factors, 0) / accepted.sum().clamp(min=1)
        result = rows.weighted_sum(weights, scores, state)
        return result._replace(likeness=likeness_to(rows, v))
