import numpy as np

from zeno.faults.fault import Fault, check_classes
from zeno.problem.dataset import Batch


class LabelFlip(Fault):
    """Flipped labels: classes - 1 - label."""

    def on_batch(self, batch: Batch, classes: int | None, rng: np.random.Generator) -> Batch:
        return Batch(batch.inputs, check_classes(self, classes) - 1 - batch.targets)
