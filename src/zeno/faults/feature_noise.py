from dataclasses import dataclass

import numpy as np
import torch

from zeno.faults.fault import Fault
from zeno.problem.dataset import Batch
from zeno.rules.parameters import Positive


@dataclass(frozen=True)
class FeatureNoise(Fault):
    """Gaussian noise of standard deviation sigma on the inputs."""

    sigma: Positive = 1.0

    def on_batch(self, batch: Batch, classes: int | None, rng: np.random.Generator) -> Batch:
        if not batch.inputs.is_floating_point():
            raise ValueError(f"FeatureNoise needs a task with floating-point inputs. Found {batch.inputs.dtype}.")
        noise = rng.standard_normal(tuple(batch.inputs.shape), dtype=np.float32)
        return Batch(batch.inputs + self.sigma * torch.from_numpy(noise).to(batch.inputs), batch.targets)
