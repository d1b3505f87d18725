import math

from torch import Tensor

from zeno.faults.fault import Fault, Scene


class NonFinite(Fault):
    """NaN or Inf in one coordinate of the worker's gradient."""

    def on_gradients(self, scene: Scene) -> Tensor:
        sent = scene.own.clone()
        for row in sent:
            row[int(scene.rng.integers(len(row)))] = (math.nan, math.inf, -math.inf)[int(scene.rng.integers(3))]
        return sent
