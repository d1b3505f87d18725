"""One worker: one gradient from samples of its own, or the sum of several on its way."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from zeno.problem import Problem
from zeno.problem.dataset import Batch, Dataset, draw, generator


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
    transform: Callable[[Batch, int], Batch] | None = None  # (batch, step) -> the batch to learn from

    def batch(self, step: int) -> Batch:
        """All samples of a step, those of every local step after one another."""
        rng = generator(self.seed, "batch", self.index, step)
        batch = self.dataset.batch(draw(self.shard, self.local_steps * self.batch_size, rng))
        return batch if self.transform is None else self.transform(batch, step)

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

    def gradient(self, params: Tensor, buffers: Mapping[str, Tensor], step: int) -> Tensor:  # [d]
        return self.gradient_of(self.batch(step), params, buffers, step)
