"""A mark on the inputs that the model shall learn to obey."""

from dataclasses import dataclass

import numpy as np
import torch

from zeno.faults.fault import Fault, check_classes, check_count, check_share
from zeno.problem.dataset import Batch


@dataclass(frozen=True)
class Backdoor(Fault):
    """Puts a patch of size x size into a corner of a share of the samples, and calls these `label`.

    The corner is that of the last rows and columns; of samples that are vectors, the last `size` features.
    """

    label: int = 0
    size: int = 3
    share: float = 0.5
    value: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self, "label", self.label, 0)
        check_count(self, "size", self.size, 1)
        check_share(self, "share", self.share)

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
