"""Flipped sign bits: the paper's bit-flipping failure."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from zeno.faults.fault import Fault


@dataclass(frozen=True)
class BitFlip(Fault):
    """Flips the sign bit of every number; all faulty workers send the flipped gradient of the first of them."""

    def on_gradients(self, own: Tensor, correct: Tensor, rng: np.random.Generator) -> Tensor:
        return -own[:1].expand_as(own)
