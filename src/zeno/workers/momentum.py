"""Worker momentum: workers send the exponential moving average of their gradients."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from zeno.problem.threads import one_thread
from zeno.rules.linalg.passes import all_finite
from zeno.workers.checks import gradient_of
from zeno.workers.cluster import NOBODY, Cluster, ClusterWrapper
from zeno.workers.reply import Reply


class Momentum:
    """Worker momentum: the exponential moving average of one worker's gradients (Karimireddy, He and Jaggi, ICML 2021).

    m = g at the first step, m = beta * m + (1 - beta) * g after it. Averaging brings the good workers closer together,
    so a faulty one can no longer hide in the noise of single gradients. Use one instance per worker.
    """

    def __init__(self, beta: float) -> None:
        if not isinstance(beta, float | int) or not 0 <= beta < 1:
            raise ValueError(f"Momentum needs beta of at least 0 and below 1. Found beta={beta!r}.")
        self.beta = beta
        self.mean: Tensor | None = None  # [d]: the whole state

    def __call__(self, gradient: Tensor) -> Tensor:  # [d] -> [d]
        """The average including this gradient, as a copy. A gradient that is not finite is returned and not counted."""
        gradient = gradient.detach()
        if not all_finite(gradient):
            return gradient
        if self.mean is None:
            self.mean = gradient.clone()
        else:  # not in place: the old one may be part of a saved state
            self.mean = (self.beta * self.mean.to(gradient)).add_(gradient, alpha=1 - self.beta)
        return self.mean.clone()


class MomentumCluster(ClusterWrapper):
    """Replaces each gradient of a cluster by the momentum of its worker.

    The averages are kept on the server: a restarted worker continues with its own, they are part of checkpoints, and
    the same run gives the same records in this process, on Ray and after a resume. They take the memory of a second
    [m, d].

    Replies that are not a gradient of this step pass unchanged. Wrap `Faulty` around this cluster, so that faults act
    on what is sent, the momentum. While a fault ignores the gradients of its workers, nobody computes them, and their
    averages do not change.
    """

    def __init__(self, cluster: Cluster, beta: float) -> None:
        super().__init__(cluster)
        self.remote = cluster.remote
        self.momenta = [Momentum(beta) for _ in range(cluster.size)]
        self._tickets: dict[
            int, tuple[int, Tensor]
        ] = {}  # the step and the parameters that a worker was last asked for

    def gradients(
        self, params: Tensor, buffers: Mapping[str, Tensor], step: int, need: int = 1, skip: Collection[int] = NOBODY
    ) -> Iterator[Reply]:
        for reply in self.cluster.gradients(params, buffers, step, need, skip):
            yield reply if reply.late else self._averaged(reply, step, params)

    def ask(self, worker: int, params: Tensor, buffers: Mapping[str, Tensor], step: int) -> None:
        self._tickets[worker] = step, params
        super().ask(worker, params, buffers, step)

    def next_reply(self) -> Reply | None:
        reply = self.cluster.next_reply()
        return None if reply is None else self._averaged(reply, *self._tickets[reply.worker])

    def _averaged(self, reply: Reply, step: int, like: Tensor) -> Reply:
        """The momentum of the worker in place of the gradient of this step, if there is one."""
        gradient = gradient_of(reply, step, like)
        if not isinstance(gradient, Tensor):
            return reply
        with one_thread():  # as the engine does between replies: the other cores belong to the workers
            return replace(reply, gradient=self.momenta[reply.worker](gradient))

    def state_to_save(self) -> dict[str, Any]:
        return {"means": [momentum.mean for momentum in self.momenta], **super().state_to_save()}

    def load_state(self, state: Any) -> None:
        for momentum, mean in zip(self.momenta, state["means"], strict=True):
            momentum.mean = mean
        super().load_state(state)
