from dataclasses import dataclass

import torch
from torch import Tensor

from zeno.faults.fault import IndependentFault, Scene
from zeno.rules.parameters import Positive


@dataclass(frozen=True)
class Huge(IndependentFault):
    """Gradients that are `value`, a huge number, in every coordinate."""

    value: Positive = 1e30

    def on_gradients(self, scene: Scene) -> Tensor:
        return torch.full_like(scene.own, self.value)
