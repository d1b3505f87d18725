"""One worker: one gradient from samples of its own, or the sum of several on its way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from zeno.data import Batch, Dataset, draw, generator
from zeno.faults import Fault
from zeno.problem import Problem


@dataclass(frozen=True)
class Worker:
    """Computes the gradient of a batch that is decided by (seed, worker, step) alone."""

    index: int
    problem: Problem
    dataset: Dataset
    shard: Tensor  # which samples of the dataset are this worker's
    batch_size: int
    seed: int
    precision: str = "float32"  # of the gradient's computation; what is sent is always in the parameters' own
    local_steps: int = 1  # that it takes by itself, each on a batch of its own
    lrs: Sequence[float] = ()  # of every step of the run; only local steps need them

    def batch(self, step: int) -> Batch:
        """All samples of a step, those of every local step after one another."""
        rng = generator(self.seed, "batch", self.index, step)
        return self.dataset.batch(draw(self.shard, self.local_steps * self.batch_size, rng))

    def batch_under(self, fault: Fault | None, step: int) -> Batch:
        """The batch as the fault, if there is one, leaves it."""
        if fault is None:
            return self.batch(step)
        rng = generator(self.seed, "fault on batch", self.index, step)
        return fault.on_batch(self.batch(step), self.dataset.classes, rng)

    def gradient_of(self, batch: Batch, params: Tensor, buffers: Mapping[str, Tensor], step: int) -> Tensor:  # [d]
        """Of the whole batch, or with local steps the sum u of the gradients on the way, each of its part of the batch.

        So x - lr * u is where plain SGD arrives, and (x - that) / lr is u: the server tries it as it does a gradient.
        """
        self.problem.load_buffers(buffers)
        dropout = generator(self.seed, "dropout", self.index, step)

        def gradient(at: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
            return self.problem.gradient(at, Batch(inputs, targets), int(dropout.integers(2**63)), self.precision)

        first, *others = zip(*(part.tensor_split(self.local_steps) for part in batch), strict=True)
        total = gradient(params, *first)
        for part in others:
            total += gradient(params - self.lrs[step] * total, *part)
        return total

    def gradient(
        self, params: Tensor, buffers: Mapping[str, Tensor], step: int, fault: Fault | None = None
    ) -> Tensor:  # [d]
        return self.gradient_of(self.batch_under(fault, step), params, buffers, step)
