"""Workers that take turns in this process."""

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType

from torch import Tensor

from zeno.cluster.cluster import NO_FAULTS, Cluster, Reply
from zeno.faults import Fault
from zeno.worker import Worker


class LocalCluster(Cluster):
    """All workers in this process, one after the other. An exception in one is a bug of yours, and ends the run."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = workers
        self.size = len(workers)

    def gradients(
        self, params: Tensor, buffers: Mapping[str, Tensor], step: int, faults: Mapping[int, Fault] = NO_FAULTS
    ) -> Iterator[Reply]:
        for worker in self.workers:
            gradient = worker.gradient(params, buffers, step, faults.get(worker.index))
            yield Reply(worker.index, step, gradient)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to shut down."""
