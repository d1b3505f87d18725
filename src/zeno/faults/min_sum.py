from dataclasses import dataclass

from torch import Tensor

from zeno.faults.perturbation import Perturbation


@dataclass(frozen=True)
class MinSum(Perturbation):
    """Like min_max, limited by the sum of squared distances instead (Shejwalkar and Houmansadr 2021).

    It is mu - gamma p: p is sigma ("std"), mu / ||mu|| ("unit") or sign(mu) ("sign"), gamma as large as this allows.
    """

    def gamma(self, away: Tensor, apart: Tensor, p: Tensor) -> Tensor:
        # sum of ||mu - gamma p - g||^2 over all g: the term in gamma is 0, since the mu - g add up to 0
        slack = apart.sum(dim=1).max() - away.square().sum()
        return (slack.clamp(min=0) / (len(away) * (p @ p))).sqrt()
