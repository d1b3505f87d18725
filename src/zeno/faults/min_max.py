from dataclasses import dataclass

from torch import Tensor

from zeno.faults.perturbation import Perturbation


@dataclass(frozen=True)
class MinMax(Perturbation):
    """Mean of the correct gradients, shifted as far as their pairwise distances allow (Shejwalkar and Houmansadr 2021).

    It is mu - gamma p: p is sigma ("std"), mu / ||mu|| ("unit") or sign(mu) ("sign"), gamma as large as this allows.
    """

    def gamma(self, away: Tensor, apart: Tensor, p: Tensor) -> Tensor:
        # ||mu - gamma p - g||^2 = the largest squared distance, for each g: the larger root
        along, squared = away @ p, p @ p
        slack = apart.max() - away.square().sum(dim=1)
        return ((along + (along.square() + squared * slack.clamp(min=0)).sqrt()) / squared).min()
