"""A broken sensor."""

from dataclasses import dataclass

import numpy as np
import torch

from zeno.faults.fault import Fault, check_positive
from zeno.problem.dataset import Batch


@dataclass(frozen=True)
class FeatureNoise(Fault):
    """Computes its gradient from inputs with normal noise of deviation sigma added."""

    sigma: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "sigma", self.sigma)

    def on_batch(self, batch: Batch, classes: int | None, rng: np.random.Generator) -> Batch:
        if not batch.inputs.is_floating_point():
            raise ValueError(f"FeatureNoise needs a task whose inputs are fractions. Found {batch.inputs.dtype}.")
        noise = rng.standard_normal(tuple(batch.inputs.shape), dtype=np.float32)
        return Batch(batch.inputs + self.sigma * torch.from_numpy(noise).to(batch.inputs), batch.targets)
