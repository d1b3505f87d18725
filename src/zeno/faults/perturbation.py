"""The attacks of Shejwalkar and Houmansadr (NDSS 2021): the mean, moved as far as a bound on distances allows."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from zeno.faults.fault import Fault, Scene
from zeno.rules.parameters import Requirement

Direction = Annotated[str, Requirement("one of std, unit, sign", lambda value: value in ("std", "unit", "sign"))]


@dataclass(frozen=True)
class Perturbation(Fault):
    """mu - gamma p, where p is sigma ("std"), mu / ||mu|| ("unit") or sign(mu) ("sign")."""

    direction: Direction = "std"

    def on_gradients(self, scene: Scene) -> Tensor:
        computed = scene.computed.double()  # [n, d]
        mu = computed.mean(dim=0)
        p = mu.sign() if self.direction == "sign" else mu / mu.norm().clamp(min=1e-300)
        p = computed.std(dim=0, unbiased=False) if self.direction == "std" else p
        if p @ p == 0:
            return scene.all_send(scene.mu)
        away = mu - computed
        products = away @ away.T
        norms = products.diagonal()
        apart = norms[:, None] + norms - 2 * products
        return scene.all_send((mu - self.gamma(away, apart, p) * p).to(scene.own))

    @abstractmethod
    def gamma(self, away: Tensor, apart: Tensor, p: Tensor) -> Tensor:
        """The largest gamma allowed, from mu - g for each gradient g [n, d] and their squared distances [n, n]."""
