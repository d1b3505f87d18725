from dataclasses import dataclass

from torch import Tensor

from zeno.faults.fault import Fault, Scene
from zeno.rules.parameters import Positive


@dataclass(frozen=True)
class InnerProduct(Fault):
    """Inner product manipulation: -eps times the mean of the correct gradients (Xie et al. 2019)."""

    eps: Positive = 0.5

    def on_gradients(self, scene: Scene) -> Tensor:
        return scene.all_send(-self.eps * scene.mu)
