from dataclasses import dataclass

from torch import Tensor

from zeno.faults.fault import Fault, Scene
from zeno.rules.parameters import Positive


@dataclass(frozen=True)
class SignFlip(Fault):
    """The worker's gradient times -scale."""

    scale: Positive = 1.0

    def on_gradients(self, scene: Scene) -> Tensor:
        return -self.scale * scene.own
