"""What every fault shares: where it can act.

A fault acts on the batch before the gradient is computed (poisoned data), or on the gradients before they are
sent (a bug, a flipped bit, malice). The second kind is handed what all workers computed, since faulty workers
may know of each other and of the rest.

Shapes: k faulty workers, m workers in all, d parameters, n samples.
"""

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from zeno.data import Batch


@dataclass(frozen=True)
class Fault:
    """What goes wrong on a worker. Override one of the two; as it stands, nothing does."""

    def on_batch(self, batch: Batch, classes: int | None, rng: np.random.Generator) -> Batch:
        """What the faulty worker computes its gradient from, in place of `batch`."""
        return batch

    def on_gradients(self, own: Tensor, correct: Tensor, rng: np.random.Generator) -> Tensor:
        """What the faulty workers send [k, d], in place of their own gradients [k, d].

        `correct` [m - k, d] is what the others send. Never called with k = 0.
        """
        return own


def check_positive(fault: Fault, name: str, value: float) -> None:
    """Refuses a parameter that is not a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{type(fault).__name__} needs {name} as a finite number above 0. Found {name}={value!r}.")
