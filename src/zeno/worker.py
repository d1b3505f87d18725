"""One worker: one gradient from samples of its own."""

from collections.abc import Mapping
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

    def batch(self, step: int) -> Batch:
        rng = generator(self.seed, "batch", self.index, step)
        return self.dataset.batch(draw(self.shard, self.batch_size, rng))

    def batch_under(self, fault: Fault | None, step: int) -> Batch:
        """The batch as the fault, if there is one, leaves it."""
        if fault is None:
            return self.batch(step)
        rng = generator(self.seed, "fault on batch", self.index, step)
        return fault.on_batch(self.batch(step), self.dataset.classes, rng)

    def gradient_of(self, batch: Batch, params: Tensor, buffers: Mapping[str, Tensor], step: int) -> Tensor:  # [d]
        self.problem.load_buffers(buffers)
        dropout_seed = int(generator(self.seed, "dropout", self.index, step).integers(2**63))
        return self.problem.gradient(params, batch, dropout_seed, self.precision)

    def gradient(
        self, params: Tensor, buffers: Mapping[str, Tensor], step: int, fault: Fault | None = None
    ) -> Tensor:  # [d]
        return self.gradient_of(self.batch_under(fault, step), params, buffers, step)
