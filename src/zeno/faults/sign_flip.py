"""The opposite of the truth, as large as one likes."""

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from zeno.faults.fault import Fault


@dataclass(frozen=True)
class SignFlip(Fault):
    """Sends its own gradient times -scale."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"SignFlip needs scale as a finite number above 0. Found scale={self.scale!r}.")

    def on_gradients(self, own: Tensor, correct: Tensor, rng: np.random.Generator) -> Tensor:
        return -self.scale * own
