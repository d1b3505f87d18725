"""An oracle with made-up answers, for the tests of rules."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

CURVATURE = 1.0


class FakeOracle:
    """Returns these descents, or those of this function of the candidates [m, d]; and this gradient.

    Any other step, such as a mean of candidates, is one on the loss <gradient, x> + CURVATURE / 2 * ||x||^2 from x = 0.
    """

    def __init__(
        self,
        descents: Tensor | Callable[[Tensor], Tensor] | None = None,
        gradient: Tensor | Sequence[float] = (),
        lr: float | Tensor = 0.1,
        halves: Tensor | None = None,  # [2, d], by default twice the gradient
    ) -> None:
        self.answer, self.lr, self.halves = descents, lr, halves
        self.gradient_here = gradient if isinstance(gradient, Tensor) else torch.tensor(gradient)

    def descents(self, candidates: Tensor | Sequence[Tensor]) -> Tensor:
        if self.answer is None:
            return torch.zeros(len(candidates))
        rows = candidates if isinstance(candidates, Tensor) else torch.stack(list(candidates))
        if not isinstance(self.answer, Tensor):
            return self.answer(rows)
        if len(rows) == 1 < len(self.answer):
            x = -self.lr * rows.double()
            return -(x @ self.gradient_here.double() + CURVATURE / 2 * x.square().sum(dim=1))
        return self.answer

    def gradient(self, after: Tensor | None = None) -> Tensor:
        return self.gradient_here if after is None else self.gradient_here - CURVATURE * self.lr * after

    def half_gradients(self) -> Tensor:
        return self.gradient_here.repeat(2, 1) if self.halves is None else self.halves
