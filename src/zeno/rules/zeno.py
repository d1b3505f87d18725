"""Zeno (Xie, Koyejo and Gupta, ICML 2019): average the candidates that lower the loss on the server's samples.

Definition 2 of the paper. The score of a candidate u is the descent that it brings, less a penalty on its size, which
bounds the harm that a wrong step can do where the samples happen not to show it:

    Score(u, x) = f_r(x) - f_r(x - lr * u) - rho * ||u||^2       f_r: mean loss on n_r fresh samples

Definition 3. The update is the average of the m - b candidates with the highest scores, b >= the number of faulty
workers. No majority is needed: one good worker suffices.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from zeno.rules.rule import Aggregate, NonNegative, Oracle, Rows, Rule, Samples, Tolerated, TooFewUsable, keep_lowest

SCORES = ("exact", "first_order")


@dataclass(frozen=True)
class Zeno(Rule):
    """Average of the m - trim candidates that lower the server's loss most; tolerates any `trim` < m faulty workers.

    `score="first_order"` replaces the descent by lr * <grad f_r(x), u>: one backward pass for all candidates instead
    of one forward pass for each. It is wrong where the loss bends along a step: a step so long that it overshoots still
    scores well, and only rho limits it. Use the exact score early in training, with BatchNorm, and at high lr.
    """

    trim: Tolerated  # b in the paper
    rho: NonNegative = 5e-4
    batch_size: Samples = 4  # n_r in the paper
    score: str = "exact"

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise ValueError(f"Zeno needs score as one of {', '.join(SCORES)}. Found score={self.score!r}.")
        super().__post_init__()

    @property
    def scores_on_arrival(self) -> bool:
        return self.score == "exact"

    def prepare(self, oracle: Oracle, state: object) -> None:
        if self.score == "first_order":
            oracle.gradient()

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        rows.require(self.trim + 1, "more than trim", trim=self.trim)
        scores = self.scores(rows, oracle)
        keep = rows.n - rows.remaining(self.trim)  # m - b
        if int((scores > -torch.inf).sum()) < keep:
            raise TooFewUsable.of(self, keep, (rows.owners & (scores > -torch.inf)[:, None]).any(dim=0))
        return rows.average(keep_lowest(-scores, keep), scores)

    def scores(self, rows: Rows, oracle: Oracle | None) -> Tensor:
        """The score of each row -> [n]; minus infinity where it is not a number."""
        scores = descents(rows, oracle, self.score) - self.rho * rows.squared_norms()
        return scores.nan_to_num(-torch.inf, torch.inf, -torch.inf)


def descents(rows: Rows, oracle: Oracle | None, score: str) -> Tensor:
    """f_r(x) - f_r(x - lr * u) of each row u -> [n] in float64, exact or to first order."""
    oracle = rows.require_oracle(oracle)
    if score == "exact":
        return rows.descents(oracle)
    return rows.slopes(rows.server_gradient(oracle), oracle)
