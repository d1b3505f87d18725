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

    def batch(self, step: int) -> Batch:
        rng = generator(self.seed, "batch", self.index, step)
        return self.dataset.batch(draw(self.shard, self.batch_size, rng))

    def gradient(
        self, params: Tensor, buffers: Mapping[str, Tensor], step: int, fault: Fault | None = None
    ) -> Tensor:  # [d]
        batch = self.batch(step)
        if fault is not None:
            rng = generator(self.seed, "fault on batch", self.index, step)
            batch = fault.on_batch(batch, self.dataset.classes, rng)
        self.problem.load_buffers(buffers)
        dropout_seed = int(generator(self.seed, "dropout", self.index, step).integers(2**63))
        return self.problem.gradient(params, batch, dropout_seed)
