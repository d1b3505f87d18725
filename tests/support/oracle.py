"""An oracle with made-up answers, for the tests of rules."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class FakeOracle:
    """Returns these descents, or those of this function of the candidates [m, d]; and this gradient."""

    def __init__(
        self,
        descents: Tensor | Callable[[Tensor], Tensor] | None = None,
        gradient: Tensor | Sequence[float] = (),
        lr: float = 0.1,
    ) -> None:
        self.answer, self.lr = descents, lr
        self.gradient_here = gradient if isinstance(gradient, Tensor) else torch.tensor(gradient)

    def descents(self, candidates: Tensor | Sequence[Tensor]) -> Tensor:
        if self.answer is None:
            return torch.zeros(len(candidates))
        rows = candidates if isinstance(candidates, Tensor) else torch.stack(list(candidates))
        return self.answer if isinstance(self.answer, Tensor) else self.answer(rows)

    def fresh_descents(self, candidates: Sequence[Tensor], samples: int) -> Tensor:
        return self.descents(candidates)[:, None].repeat(1, 8)

    def gradient(self) -> Tensor:
        return self.gradient_here
