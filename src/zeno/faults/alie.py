from dataclasses import dataclass
from statistics import NormalDist

from torch import Tensor

from zeno.faults.fault import Fault, Scene
from zeno.rules.parameters import Positive


@dataclass(frozen=True)
class ALIE(Fault):
    """A Little Is Enough: mean - z std of the correct gradients, so that it hides in their spread (Baruch et al. 2019).

    By default, z follows from the number of workers and of those with this fault.
    """

    z: Positive | None = None

    def on_gradients(self, scene: Scene) -> Tensor:
        z = default_z(scene.size, len(scene.workers)) if self.z is None else self.z
        return scene.all_send(scene.mu - z * scene.sigma)


def default_z(workers: int, faulty: int) -> float:
    """The largest z at which enough correct workers are farther from the mean to make up a majority."""
    faulty = min(faulty, workers // 2)  # more than half need no supporters: the published formula has no value there
    supporters = workers // 2 + 1 - faulty  # s in the paper
    nearer = (workers - faulty - supporters) / (workers - faulty)
    return NormalDist().inv_cdf(nearer) if nearer > 0 else 0.0  # with one or two workers
