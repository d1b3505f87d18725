"""What a fault knows when it decides what its workers send."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(eq=False)
class Scene:
    """One step as the workers of one fault see it, after all gradients were computed. None of it may be written to.

    Only `memory` may: it comes back at the next step, and is saved in checkpoints. So its keys are text, and its values
    tensors, numbers, or lists of them.
    """

    step: int
    workers: Sequence[int]  # k of them: those of this fault that have a gradient, in order
    own: Tensor  # [k, d] what they computed; NaN for those that the fault does not need
    correct: Tensor  # what the workers without any fault at this step send, in order of the workers
    rng: np.random.Generator
    size: int  # m
    others: Mapping[int, Tensor] = field(default_factory=dict)  # worker -> [d]: what those with no or other faults send
    believe: Callable[[Tensor], Tensor | None] | None = None
    """What the rule in use would make [d] of candidates [m, d]; None from it: it would skip the step. It is None itself
    where nobody knows the rule."""
    memory: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def computed(self) -> Tensor:
        """All gradients that were computed correctly, by workers of this fault and by those without any.

        Colluding faults hide among these. Among the correct workers' alone they could not where just one is left: its
        deviation is 0.
        """
        return torch.cat([self.own, self.correct])

    @cached_property
    def mu(self) -> Tensor:  # [d]
        """The mean of all gradients that were computed correctly."""
        return self.computed.mean(dim=0)

    @cached_property
    def sigma(self) -> Tensor:  # [d]
        """Their deviation in each coordinate: the population's, which a single gradient has as well (0)."""
        return self.computed.std(dim=0, unbiased=False)

    def all_send(self, vector: Tensor) -> Tensor:  # [k, d]
        """The same vector [d] from each faulty worker."""
        return vector.expand_as(self.own)

    def candidates(self, sent: Tensor) -> Tensor:  # [m, d]
        """The rows that the server will see if the faulty workers send these [k, d]; NaN where nothing comes."""
        rows = sent.new_full((self.size, sent.shape[1]), torch.nan)
        for worker, gradient in self.others.items():
            rows[worker] = gradient
        rows[list(self.workers)] = sent
        return rows
