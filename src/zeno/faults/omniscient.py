"""The worst that knowing everything allows."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from zeno.faults.fault import Fault
from zeno.faults.scene import Scene

SCALES = (0.1, 1.0, 10.0, 100.0)
REFINEMENTS = 7  # so that the rule is asked 24 times in all


@dataclass(frozen=True)
class Omniscient(Fault):
    """Sends the vector that hurts the rule in use most, of some directions at any scale; -mu where nobody knows it.

    Harm is how far the update goes against mu. A larger scale harms more until the rule sees through it, so the best
    one found is refined towards the next larger one.
    """

    def on_gradients(self, scene: Scene) -> Tensor:
        mu, believe = scene.mu, scene.believe
        if believe is None or not mu.isfinite().all():
            return scene.all_send(-mu)
        rows = scene.candidates(scene.own)

        def harm(vector: Tensor) -> float:
            rows[list(scene.workers)] = vector
            update = believe(rows)
            found = 0.0 if update is None else -float(update.double() @ mu.double())
            return found if math.isfinite(found) else -math.inf

        tries = [(at, scale) for at in _harmful(scene) for scale in SCALES] + [(lambda t: t * mu, 0.1)]  # only dilutes
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


def _harmful(scene: Scene) -> list[Callable[[float], Tensor]]:
    """Vectors [d] by scale."""
    mu, sigma = scene.mu, scene.sigma
    signs = -mu.sign() * (mu.norm() / mu.sign().norm().clamp(min=1))  # at mu's norm
    turned = -1.1 * scene.correct.sum(dim=0) / len(scene.own)  # just enough to turn the mean of all around
    return [lambda t: -t * mu, lambda t: mu - t * sigma, lambda t: t * signs, lambda t: t * turned]
