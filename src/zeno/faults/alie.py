"""A little is enough."""

from dataclasses import dataclass
from statistics import NormalDist

from torch import Tensor

from zeno.faults.fault import Fault, check_positive
from zeno.faults.scene import Scene


@dataclass(frozen=True)
class ALIE(Fault):
    """Sends mu - z sigma, just within the spread of the correct gradients (Baruch et al. 2019).

    z follows from the number of workers, and of those that have this fault, unless it is given.
    """

    z: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.z is not None:
            check_positive(self, "z", self.z)

    def on_gradients(self, scene: Scene) -> Tensor:
        z = little(scene.size, len(scene.workers)) if self.z is None else self.z
        return scene.all_send(scene.mu - z * scene.sigma)


def little(workers: int, faulty: int) -> float:
    """How far from the mean, in deviations, enough correct workers lie farther out to make up a majority.

    With half of the workers faulty, or more, none are needed, and the published formula has no value: as for half.
    """
    faulty = min(faulty, workers // 2)
    supporters = workers // 2 + 1 - faulty  # s in the paper
    nearer = (workers - faulty - supporters) / (workers - faulty)
    return NormalDist().inv_cdf(nearer) if nearer > 0 else 0.0  # of one or two workers
