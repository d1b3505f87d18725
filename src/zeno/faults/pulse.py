from dataclasses import dataclass

from torch import Tensor

from zeno.faults.fault import Fault, Scene
from zeno.rules.parameters import Positive, PositiveCount


@dataclass(frozen=True)
class Pulse(Fault):
    """The worker's gradient times -scale at one step in `every`, by all faulty workers together; correct otherwise.

    The wrong step is the last of each `every` steps, counted from `start`.
    """

    every: PositiveCount = 10
    scale: Positive = 10.0

    def on_gradients(self, scene: Scene) -> Tensor:
        now = (scene.step - self.start + 1) % self.every == 0
        return -self.scale * scene.own if now else scene.own
