"""Noise in place of a gradient."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zeno.faults.fault import Fault, check_positive
from zeno.faults.scene import Scene


@dataclass(frozen=True)
class Gaussian(Fault):
    """Sends normal noise of mean 0 and deviation sigma."""

    sigma: float = 200.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "sigma", self.sigma)

    def needs(self, workers: Sequence[int], correct: Sequence[int]) -> Sequence[int]:
        return ()

    def on_gradients(self, scene: Scene) -> Tensor:
        noise = scene.rng.standard_normal(tuple(scene.own.shape), dtype=np.float32)
        return torch.from_numpy(noise).to(scene.own) * self.sigma
