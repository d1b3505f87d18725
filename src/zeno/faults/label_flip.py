"""Poisoned labels: the paper's label-flipping failure."""

from dataclasses import dataclass

import numpy as np

from zeno.data import Batch
from zeno.faults.fault import Fault


@dataclass(frozen=True)
class LabelFlip(Fault):
    """Computes its gradient from flipped labels: classes - 1 - label."""

    def on_batch(self, batch: Batch, classes: int | None, rng: np.random.Generator) -> Batch:
        if classes is None:
            raise ValueError("label_flip needs a task with class labels. Found targets that are not classes.")
        return Batch(batch.inputs, classes - 1 - batch.targets)
