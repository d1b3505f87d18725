"""Labels that mean nothing."""

from dataclasses import dataclass

import numpy as np
import torch

from zeno.faults.fault import Fault, check_classes, check_share
from zeno.problem.dataset import Batch


@dataclass(frozen=True)
class LabelNoise(Fault):
    """Computes its gradient from labels drawn at random, for a share of the samples."""

    share: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(self, "share", self.share)

    def on_batch(self, batch: Batch, classes: int | None, rng: np.random.Generator) -> Batch:
        num = len(batch.targets)
        rows = torch.from_numpy(rng.permutation(num)[: round(self.share * num)])
        targets = batch.targets.clone()
        drawn = rng.integers(check_classes(self, classes), size=tuple(targets[rows].shape))
        targets[rows] = torch.from_numpy(drawn).to(targets)
        return Batch(batch.inputs, targets)
