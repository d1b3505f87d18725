import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zeno.faults.fault import Fault, Scene
from zeno.faults.line_search import worst_strength
from zeno.rules.parameters import Positive

UNKNOWN = 2.0


@dataclass(frozen=True)
class CancellingOffsets(Fault):
    """The mean of the correct gradients plus large offsets, which cancel out over the workers and over two steps.

    Made against rules that judge mixtures of candidates or their means over time, such as ZenoAuto. The mean of these
    workers is the mean of the correct gradients, with less noise than any correct worker. So is the mean of each of
    them over time, since its offset changes sign at every step. But at a single step, unequal weights of the workers
    move the update. The offsets lie on an ellipse around mu, through 2 mu, 0 and a fixed random direction, if
    `strength` is 1. By default, the strength is searched by trying the rule at every other step, and is 2 if the rule
    is unknown. Harm is how far the update points against mu. A single worker cancels out over the steps only.
    """

    strength: Positive | None = None

    def on_gradients(self, scene: Scene) -> Tensor:
        mu, offsets, memory = scene.mu, _offsets(scene), scene.memory
        if self.strength is None and (scene.step % 2 == 0 or "strength" not in memory):
            # Not at every step: the next one has to cancel this one.
            memory["strength"] = worst_strength(scene, lambda s: mu + s * offsets, against=mu, unknown=UNKNOWN)
        strength: float = memory["strength"] if self.strength is None else self.strength
        return mu + strength * offsets


def _offsets(scene: Scene) -> Tensor:  # [k, d]
    """(-1)^step (cos(2 pi i / k) mu + sin(2 pi i / k) ||mu|| v) of the i-th worker; v is random, of length 1."""
    if "direction" not in scene.memory:
        drawn = torch.from_numpy(scene.rng.standard_normal(scene.own.shape[1]))
        scene.memory["direction"] = (drawn / drawn.norm()).to(scene.own)
    k, mu = len(scene.own), scene.mu
    direction: Tensor = scene.memory["direction"]
    sideways = mu.double().norm().to(mu) * direction.to(mu)
    angles = torch.arange(k, dtype=torch.float64) * (2 * math.pi / k)
    cos, sin = angles.cos().to(mu)[:, None], angles.sin().to(mu)[:, None]
    offsets: Tensor = cos * mu + sin * sideways
    return offsets if scene.step % 2 == 0 else -offsets
