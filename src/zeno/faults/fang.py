"""The attacks of Fang, Cao, Jia and Gong (USENIX Security 2020), with full knowledge, in terms of gradients.

The paper sends models. A gradient of 0 is the model that the server sent out, and a step against the gradient is the
direction in which the model would change, so the paper's w_Re - lambda s is here -lambda sign(mu).
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from zeno.faults.fault import Fault, Scene
from zeno.rules.parameters import Requirement

Target = Annotated[str, Requirement("one of krum, trimmed_mean", lambda value: value in ("krum", "trimmed_mean"))]

FACTOR = 2  # b in the paper: how far beyond the correct values
HALVINGS = 20  # of lambda, at most


@dataclass(frozen=True)
class Fang(Fault):
    """Directed deviation: pushes each coordinate against the sign of its mean, by as much as a rule lets through.

    `against="trimmed_mean"`, or the median: values drawn just beyond the most extreme correct ones. It needs to know no
    rule. `against="krum"`: all send -lambda sign(mean), where lambda is halved from an upper bound until the rule in
    use picks it, that is, until nothing that was sent is nearer to the update. If the rule is unknown, lambda is the
    upper bound (Fang et al. 2020).
    """

    against: Target = "trimmed_mean"

    def on_gradients(self, scene: Scene) -> Tensor:
        correct = scene.correct if len(scene.correct) else scene.own
        return _beyond(scene, correct) if self.against == "trimmed_mean" else _picked(scene, correct)


def _beyond(scene: Scene, correct: Tensor) -> Tensor:  # [k, d]
    """Below the least correct value where the mean is positive, above the largest where it is negative."""
    up = scene.mu >= 0
    extreme = correct.amin(dim=0).where(up, correct.amax(dim=0))
    same_sign = (extreme > 0) == up  # then the way to the other side leads towards 0
    limit = (extreme / FACTOR).where(same_sign, extreme * FACTOR)
    share = torch.from_numpy(scene.rng.random(tuple(scene.own.shape), dtype=np.float32)).to(scene.own)
    return extreme + share * (limit - extreme)


def _picked(scene: Scene, correct: Tensor) -> Tensor:  # [k, d]
    signs = scene.mu.sign()
    strength = _upper_bound(scene, correct)  # lambda in the paper
    for _ in range(HALVINGS):
        if scene.aggregate is None or _picks(scene, -strength * signs):
            break
        strength /= 2
    return scene.all_send(-strength * signs)


def _upper_bound(scene: Scene, correct: Tensor) -> float:
    """No larger lambda can be picked by Krum: a correct gradient would be nearer to its neighbours."""
    exact = correct.double()
    m, k, (n, d) = scene.size, len(scene.own), exact.shape
    others = torch.cdist(exact, exact).sort(dim=1).values[:, 1:]  # [n, n - 1], nearest first
    neighbours = others[:, : max(n - 2, 0)].sum(dim=1).min()
    # With a faulty majority the published formula has no value: every neighbour may be faulty.
    return float((neighbours / max(m - 2 * k - 1, 1) + exact.norm(dim=1).max()) / d**0.5)


def _picks(scene: Scene, vector: Tensor) -> bool:
    """Whether the update is as near to this vector [d], sent by all faulty workers, as to any other candidate."""
    assert scene.aggregate is not None
    update = scene.aggregate(scene.candidates(scene.all_send(vector)))
    if update is None:
        return False
    others = [(gradient - update).norm() for gradient in scene.others.values()]
    return all(bool((vector - update).norm() <= distance) for distance in others if distance.isfinite())
