"""Zeno (Xie, Koyejo and Gupta, ICML 2019): believe the candidates that lower the server's own loss.

Each candidate u is a suspect. Its score is the descent it brings on a few samples of the server's own, less
a penalty on its size, which bounds the harm a wrong step can do where the samples happen not to show it:

    score(u) = f_r(x) - f_r(x - lr * u) - rho * ||u||^2          f_r: mean loss on n_r fresh samples

The update is the average of the m - b highest scores. No majority is asked for: one good worker suffices.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zeno.rules.rule import Aggregate, Descent, TooFewUsable, average, check_count, squared_norms, usable_rows


@dataclass(frozen=True)
class Zeno:
    """Average of the m - trim candidates that lower the server's own loss most; bears `trim` faulty of any m."""

    trim: int  # b in the paper
    rho: float = 5e-4
    batch_size: int = 4  # n_r in the paper: samples of the server's own that `descent` is estimated on

    def __post_init__(self) -> None:
        check_count(self, "trim", self.trim, 0)
        check_count(self, "batch_size", self.batch_size, 1)
        if not (math.isfinite(self.rho) and self.rho >= 0):
            raise ValueError(f"Zeno needs rho as a finite number of at least 0. Found rho={self.rho!r}.")

    def __call__(self, candidates: Tensor, descent: Descent | None = None, state: object = None) -> Aggregate:
        finite = usable_rows(candidates)
        m = len(finite)
        if self.trim >= m:
            raise ValueError(
                f"Zeno needs more than trim candidates. Found {m} with trim={self.trim}. Lower trim or add workers."
            )
        if descent is None:
            raise ValueError(
                "Zeno needs descent, the decrease of the loss on samples of the server's own. Found None. "
                "Pass descent=, a function of the candidates [m, d] that returns [m]; zeno.Problem.descent is one."
            )
        decrease = descent(candidates).to(torch.float64)
        if decrease.shape != (m,):
            raise ValueError(
                f"Zeno needs one descent for each of the {m} candidates. Found shape {list(decrease.shape)}."
            )

        scores = decrease - self.rho * squared_norms(candidates)
        # A score of NaN ranks last, and so does a candidate that is not finite, whatever its score.
        scores = scores.where(finite & ~scores.isnan(), -torch.inf)
        usable = scores > -torch.inf
        if int(usable.sum()) < m - self.trim:
            raise TooFewUsable(self, m - self.trim, usable)

        kept = torch.zeros_like(finite)
        kept[scores.argsort(descending=True, stable=True)[: m - self.trim]] = True  # stable: the lower row wins a tie
        return Aggregate(average(candidates[kept]), scores, kept)
