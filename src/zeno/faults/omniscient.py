import math
from collections.abc import Callable

from torch import Tensor

from zeno.faults.fault import Fault, Scene

SCALES = (0.1, 1.0, 10.0, 100.0)
REFINEMENTS = 7  # so that the rule is tried 24 times in all


class Omniscient(Fault):
    """The most harmful of several directions and scales, found by trying the rule; -mean if the rule is unknown.

    Harm is how far the update points against mu. It grows with the scale until the rule rejects the vector, so the best
    scale found is refined towards the next larger one.
    """

    def on_gradients(self, scene: Scene) -> Tensor:
        mu, aggregate = scene.mu, scene.aggregate
        if aggregate is None or not mu.isfinite().all():
            return scene.all_send(-mu)
        rows = scene.candidates(scene.own)

        def harm(vector: Tensor) -> float:
            rows[list(scene.workers)] = vector
            update = aggregate(rows)
            found = 0.0 if update is None else -float(update.double() @ mu.double())
            return found if math.isfinite(found) else -math.inf

        tries = [(at, scale) for at in _directions(scene) for scale in SCALES]
        tries.append((lambda t: t * mu, 0.1))  # makes the mean smaller
        most, at, scale = max(((harm(at(scale)), at, scale) for at, scale in tries), key=lambda found: found[0])
        above = 10 * scale
        for _ in range(REFINEMENTS):
            middle = math.sqrt(scale * above)
            found = harm(at(middle))
            if found > most:
                most, scale = found, middle
            else:
                above = middle
        return scene.all_send(at(scale))


def _directions(scene: Scene) -> list[Callable[[float], Tensor]]:
    """Vectors [d] by scale."""
    mu, sigma = scene.mu, scene.sigma
    signs = -mu.sign() * (mu.norm() / mu.sign().norm().clamp(min=1))  # with mu's norm
    turned = -1.1 * scene.correct.sum(dim=0) / len(scene.own)  # just enough to reverse the mean of all
    return [lambda t: -t * mu, lambda t: mu - t * sigma, lambda t: t * signs, lambda t: t * turned]
