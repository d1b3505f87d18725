import torch
from torch import Tensor

from zeno.faults.fault import IndependentFault, Scene


class Zero(IndependentFault):
    """All-zero gradients."""

    def on_gradients(self, scene: Scene) -> Tensor:
        return torch.zeros_like(scene.own)
