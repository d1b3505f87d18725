"""As far away as the correct gradients are from each other."""

from dataclasses import dataclass

from torch import Tensor

from zeno.faults.fault import Fault
from zeno.faults.scene import Scene

DIRECTIONS = ("std", "unit", "sign")


@dataclass(frozen=True)
class MinMax(Fault):
    """Sends mu - gamma p, no farther from any correct gradient than two of them are (Shejwalkar and Houmansadr 2021).

    p is sigma ("std"), mu / ||mu|| ("unit") or sign(mu) ("sign"); gamma is the largest that this allows.
    """

    direction: str = "std"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_direction(self, self.direction)

    def on_gradients(self, scene: Scene) -> Tensor:
        mu, away, apart, p = spread(scene, self.direction)
        along, squared = away @ p, p @ p
        if squared == 0:
            return scene.all_send(scene.mu)
        # ||mu - gamma p - g||^2 = apart's largest, for each g: the larger root
        slack = apart.max() - away.square().sum(dim=1)
        gamma = ((along + (along.square() + squared * slack.clamp(min=0)).sqrt()) / squared).min()
        return scene.all_send((mu - gamma * p).to(scene.own))


def check_direction(fault: Fault, direction: str) -> None:
    if direction not in DIRECTIONS:
        name, known = type(fault).__name__, ", ".join(DIRECTIONS)
        raise ValueError(f"{name} needs direction as one of {known}. Found direction={direction!r}.")


def spread(scene: Scene, direction: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """mu [d], mu - g for each g computed correctly [n, d], their squared distances [n, n], and p [d], in float64."""
    computed = scene.computed.double()
    mu = computed.mean(dim=0)
    away = mu - computed
    products = away @ away.T
    norms = products.diagonal()
    apart = norms[:, None] + norms - 2 * products
    if direction == "std":
        return mu, away, apart, computed.std(dim=0, unbiased=False)
    return mu, away, apart, mu.sign() if direction == "sign" else mu / mu.norm().clamp(min=1e-300)
