from dataclasses import dataclass

import numpy as np
import torch

from zeno.faults.fault import Fault, check_classes
from zeno.faults.parameters import Share
from zeno.problem.dataset import Batch


@dataclass(frozen=True)
class LabelNoise(Fault):
    """Random labels for a share of the samples."""

    share: Share = 1.0

    def on_batch(self, batch: Batch, classes: int | None, rng: np.random.Generator) -> Batch:
        num = len(batch.targets)
        rows = torch.from_numpy(rng.permutation(num)[: round(self.share * num)])
        targets = batch.targets.clone()
        drawn = rng.integers(check_classes(self, classes), size=tuple(targets[rows].shape))
        targets[rows] = torch.from_numpy(drawn).to(targets)
        return Batch(batch.inputs, targets)
