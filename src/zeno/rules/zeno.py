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

from zeno.rules.rows import OnRows, Rows, keep_lowest
from zeno.rules.rule import Aggregate, Descent, TooFewUsable, check_count, check_more, own_gradient

SCORES = ("exact", "first_order")


@dataclass(frozen=True)
class Zeno(OnRows):
    """Average of the m - trim candidates that lower the server's own loss most; bears `trim` faulty of any m.

    `score="first_order"` takes lr * <grad f_r(x), u> for the descent: one backward pass for all candidates instead of
    a forward pass for each. It differs where the loss bends along a step: a step so long that it overshoots still
    scores well, and only rho holds it back. Early in training, with BatchNorm, at high lr: take the exact one.
    """

    trim: int  # b in the paper
    rho: float = 5e-4
    batch_size: int = 4  # n_r in the paper: samples of the server's own that `descent` is estimated on
    score: str = "exact"

    def __post_init__(self) -> None:
        check_count(self, "trim", self.trim, 0)
        check_count(self, "batch_size", self.batch_size, 1)
        if not isinstance(self.rho, int | float) or not (math.isfinite(self.rho) and self.rho >= 0):
            raise ValueError(f"Zeno needs rho as a finite number of at least 0. Found rho={self.rho!r}.")
        if self.score not in SCORES:
            raise ValueError(f"Zeno needs score as one of {', '.join(SCORES)}. Found score={self.score!r}.")

    @property
    def on_arrival(self) -> bool:
        """Whether candidates can be scored as they come: the rule asks for the descent of each as it is."""
        return self.score == "exact"

    def on_rows(self, rows: Rows, descent: Descent | None, state: object) -> Aggregate:
        check_more(self, "trim", self.trim, rows.size)
        scores = self._descents(rows, descent) - self.rho * rows.squared_norms()
        scores = scores.nan_to_num(-torch.inf, torch.inf, -torch.inf)  # a score of NaN ranks last
        keep = rows.n - rows.lowered(self, self.trim)
        if int((scores > -torch.inf).sum()) < keep:
            raise TooFewUsable(self, keep, (rows.owners & (scores > -torch.inf)[:, None]).any(dim=0))
        kept = keep_lowest(-scores, keep)
        return rows.result(rows.average(kept), kept, scores)

    def _descents(self, rows: Rows, descent: Descent | None) -> Tensor:
        """By how much each row lowers the loss: [n] in float64."""
        if self.score == "first_order":
            gradient, lr = own_gradient(self, descent, rows.d), getattr(descent, "lr", None)
            if lr is None:
                raise ValueError(f"{self} needs the step that is tried, lr, from descent. Found {descent!r} without.")
            return float(lr) * rows.dots(gradient)
        if descent is None:
            raise ValueError(
                "Zeno needs descent, the decrease of the loss on samples of the server's own. Found None. "
                "Pass descent=, a function of the candidates [m, d] that returns [m]; zeno.Problem.at makes one."
            )
        decrease = rows.each(descent)
        return decrease.to(torch.float64)
