"""As far away, over all correct gradients, as one of them is."""

from dataclasses import dataclass

from torch import Tensor

from zeno.faults.fault import Fault
from zeno.faults.min_max import check_direction, spread
from zeno.faults.scene import Scene


@dataclass(frozen=True)
class MinSum(Fault):
    """Sends mu - gamma p, its squared distances to the correct gradients adding up to no more than one of theirs.

    Shejwalkar and Houmansadr 2021; p and gamma as for min_max.
    """

    direction: str = "std"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_direction(self, self.direction)

    def on_gradients(self, scene: Scene) -> Tensor:
        mu, away, apart, p = spread(scene, self.direction)
        squared = p @ p
        if squared == 0:
            return scene.all_send(scene.mu)
        # sum of ||mu - gamma p - g||^2 over all g: the term in gamma is 0, since the mu - g add up to 0
        slack = apart.sum(dim=1).max() - away.square().sum()
        gamma = (slack.clamp(min=0) / (len(away) * squared)).sqrt()
        return scene.all_send((mu - gamma * p).to(scene.own))
