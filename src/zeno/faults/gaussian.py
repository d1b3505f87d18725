from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zeno.faults.fault import IndependentFault, Scene
from zeno.rules.parameters import Positive


@dataclass(frozen=True)
class Gaussian(IndependentFault):
    """Gaussian noise of mean 0 and standard deviation sigma instead of gradients."""

    sigma: Positive = 200.0

    def on_gradients(self, scene: Scene) -> Tensor:
        noise = scene.rng.standard_normal(tuple(scene.own.shape), dtype=np.float32)
        return torch.from_numpy(noise).to(scene.own) * self.sigma
