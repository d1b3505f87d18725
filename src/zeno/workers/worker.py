"""A worker: computes one gradient per step from its own samples, or the sum of several local steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from zeno.problem.dataset import Batch, Dataset, draw, generator
from zeno.problem.local_training import summed
from zeno.problem.problem import Problem


@dataclass(frozen=True)
class Worker:
    """Computes the gradient of a batch that depends on (seed, worker, step) only."""

    index: int
    problem: Problem
    dataset: Dataset
    shard: Tensor  # indices of this worker's samples in the dataset
    batch_size: int
    seed: int
    precision: str = "float32"  # in which the gradient is computed; it is sent in the dtype of the parameters
    local_steps: int = 1  # each on its own batch
    lrs: Sequence[float] = ()  # learning rate of every step of the run; only local steps need them
    transform: Callable[[Batch, int], Batch] | None = None  # (batch, step) -> the batch to learn from

    def batch(self, step: int) -> Batch:
        """The samples of a step: the batches of all local steps, concatenated."""
        rng = generator(self.seed, "batch", self.index, step)
        batch = self.dataset.batch(draw(self.shard, self.local_steps * self.batch_size, rng))
        return batch if self.transform is None else self.transform(batch, step)

    def gradient_of(self, batch: Batch, params: Tensor, buffers: Mapping[str, Tensor], step: int) -> Tensor:  # [d]
        """The gradient of the batch; with local steps, the sum u of their gradients, each on its part of the batch.

        So x - lr * u is where plain SGD arrives, and the server can score u like a gradient.
        """
        self.problem.load_buffers(buffers)
        dropout = generator(self.seed, "dropout", self.index, step)

        def gradient(at: Tensor, part: Batch) -> Tensor:
            return self.problem.gradient(at, part, int(dropout.integers(2**63)), self.precision)

        parts = [Batch(*part) for part in zip(*(of.tensor_split(self.local_steps) for of in batch), strict=True)]
        return summed(gradient, params, parts, self.lrs[step] if self.local_steps > 1 else 0.0)

    def gradient(self, params: Tensor, buffers: Mapping[str, Tensor], step: int) -> Tensor:  # [d]
        return self.gradient_of(self.batch(step), params, buffers, step)
