"""A cluster whose workers send the decayed mean of their gradients."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

from torch import Tensor

from zeno.problem.threads import one_thread
from zeno.workers.cluster import NOBODY, Cluster, Status
from zeno.workers.momentum import Momentum
from zeno.workers.reply import Reply


class Remembering(Cluster):
    """Wraps a cluster and puts in place of each gradient the momentum of its worker.

    The means are kept here, on the server's side of the wire: a worker that was restarted goes on with its own, they
    are in the checkpoints, and the same run gives the same records in this process, on Ray and after a resume. That
    costs the memory of a second [m, d].

    A mean goes on with every gradient of its worker that comes in time. What is no gradient of this step passes as it
    is. `Faulty` belongs around this: faults of the message act on the momentum, which is what is sent. Some of them do
    without the gradients of their workers, which nobody computes then: while such a fault strikes a worker, its mean
    stands still, and goes on from there.
    """

    def __init__(self, cluster: Cluster, beta: float) -> None:
        self.cluster = cluster
        self.size = cluster.size
        self.remote = cluster.remote
        self.momenta = [Momentum(beta) for _ in range(cluster.size)]

    @property
    def status(self) -> Status:
        return self.cluster.status

    def gradients(
        self,
        params: Tensor,
        buffers: Mapping[str, Tensor],
        step: int,
        need: int = 1,
        skip: Collection[int] = NOBODY,
    ) -> Iterator[Reply]:
        for reply in self.cluster.gradients(params, buffers, step, need, skip):
            yield self._remembered(reply, step, params)

    def _remembered(self, reply: Reply, step: int, params: Tensor) -> Reply:
        gradient: object = reply.gradient  # of which nothing is taken on trust
        if reply.late or reply.error is not None or reply.step != step or not isinstance(gradient, Tensor):
            return reply
        if (gradient.shape, gradient.dtype, gradient.layout) != (params.shape, params.dtype, params.layout):
            return reply
        with one_thread():  # as the engine does between replies: the cores are the workers'
            return replace(reply, gradient=self.momenta[reply.worker](gradient))

    def state_to_save(self) -> dict[str, Any]:
        return {"means": [momentum.mean for momentum in self.momenta], "cluster": self.cluster.state_to_save()}

    def load_state(self, state: Any) -> None:
        for momentum, mean in zip(self.momenta, state["means"], strict=True):
            momentum.mean = mean
        self.cluster.load_state(state["cluster"])

    def __enter__(self) -> "Remembering":
        self.cluster.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cluster.__exit__(kind, error, trace)
