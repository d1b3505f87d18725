"""Noise in place of a gradient."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zeno.faults.fault import Fault, check_positive


@dataclass(frozen=True)
class Gaussian(Fault):
    """Sends normal noise of mean 0 and deviation sigma."""

    sigma: float = 200.0

    def __post_init__(self) -> None:
        check_positive(self, "sigma", self.sigma)

    def on_gradients(self, own: Tensor, correct: Tensor, rng: np.random.Generator) -> Tensor:
        noise = rng.standard_normal(tuple(own.shape), dtype=np.float32)
        return torch.from_numpy(noise).to(own) * self.sigma
