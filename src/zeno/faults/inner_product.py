"""A step back, short enough to pass."""

from dataclasses import dataclass

from torch import Tensor

from zeno.faults.fault import Fault, check_positive
from zeno.faults.scene import Scene


@dataclass(frozen=True)
class InnerProduct(Fault):
    """Sends -eps mu, so that the update's inner product with the gradient turns negative (Xie et al. 2019)."""

    eps: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "eps", self.eps)

    def on_gradients(self, scene: Scene) -> Tensor:
        return scene.all_send(-self.eps * scene.mu)
