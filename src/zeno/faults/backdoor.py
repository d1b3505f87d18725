from dataclasses import dataclass

import numpy as np
import torch

from zeno.faults.fault import Fault, check_classes
from zeno.faults.parameters import Share
from zeno.problem.dataset import Batch
from zeno.rules.parameters import Count, PositiveCount


@dataclass(frozen=True)
class Backdoor(Fault):
    """A backdoor: a patch of size x size in a corner of a share of the samples, which are labelled `label`.

    The corner is that of the last rows and columns; in samples that are vectors, the last `size` features.
    """

    label: Count = 0
    size: PositiveCount = 3
    share: Share = 0.5
    value: float = 1.0

    def on_batch(self, batch: Batch, classes: int | None, rng: np.random.Generator) -> Batch:
        inputs, targets = batch.inputs.clone(), batch.targets.clone()
        axes = list(inputs.shape[1:][-2:])
        if self.label >= check_classes(self, classes):
            raise ValueError(f"Backdoor needs a label below classes={classes}. Found label={self.label}.")
        if not axes or self.size > min(axes):
            raise ValueError(f"Backdoor needs samples of at least size={self.size} each way. Found {axes}. Lower size.")
        rows = torch.from_numpy(rng.permutation(len(targets))[: round(self.share * len(targets))])
        corner = inputs[..., -self.size :] if len(axes) == 1 else inputs[..., -self.size :, -self.size :]
        corner[rows] = self.value  # a view
        targets[rows] = self.label
        return Batch(inputs, targets)
