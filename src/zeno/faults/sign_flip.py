"""The opposite of the truth, as large as one likes."""

from dataclasses import dataclass

from torch import Tensor

from zeno.faults.fault import Fault, check_positive
from zeno.faults.scene import Scene


@dataclass(frozen=True)
class SignFlip(Fault):
    """Sends its own gradient times -scale."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "scale", self.scale)

    def on_gradients(self, scene: Scene) -> Tensor:
        return -self.scale * scene.own
