"""One number that is none."""

import math
from dataclasses import dataclass

from torch import Tensor

from zeno.faults.fault import Fault
from zeno.faults.scene import Scene

VALUES = (math.nan, math.inf, -math.inf)


@dataclass(frozen=True)
class NonFinite(Fault):
    """Sends its own gradient with one number, anywhere, made NaN or an infinity."""

    def on_gradients(self, scene: Scene) -> Tensor:
        sent = scene.own.clone()
        for row in sent:
            row[int(scene.rng.integers(len(row)))] = VALUES[int(scene.rng.integers(len(VALUES)))]
        return sent
