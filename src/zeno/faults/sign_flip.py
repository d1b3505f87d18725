"""The opposite of the truth, as large as one likes."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from zeno.faults.fault import Fault, check_positive


@dataclass(frozen=True)
class SignFlip(Fault):
    """Sends its own gradient times -scale."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self, "scale", self.scale)

    def on_gradients(self, own: Tensor, correct: Tensor, rng: np.random.Generator) -> Tensor:
        return -self.scale * own
