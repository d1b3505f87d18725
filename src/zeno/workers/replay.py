"""Asynchronous workers that reply in a recorded order: a run made again from its records."""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

from torch import Tensor

from zeno.workers.reply import Reply, ReplyError
from zeno.workers.simulation import SimulatedCluster, Ticket
from zeno.workers.worker import Worker

Arrival = tuple[int, int, ReplyError | None]
"""The worker, the version that it was given, and the error of a ticket that no gradient came back for."""


class ReplayedCluster(SimulatedCluster):
    """Replies in the order of `arrivals`, those of each step.

    Gradients are computed anew. Where no gradient came back, because a process died or hung or sent something
    else, the reply is the recorded error, and nothing is computed.
    """

    def __init__(self, workers: Sequence[Worker], arrivals: Sequence[Iterable[Arrival]]) -> None:
        super().__init__(workers, lambda worker, step: 0.0)
        self._arrivals = [deque(step) for step in arrivals]
        self._versions: dict[int, deque[int]] = {worker: deque() for worker in range(self.size)}  # of tickets to come
        for worker, version, _ in (arrival for step in self._arrivals for arrival in step):
            self._versions[worker].append(version)
        self._failing = {(w, version) for step in self._arrivals for w, version, error in step if error is not None}
        self._without: set[int] = set()  # workers with a ticket that brings nothing
        self._step = 0

    def idle(self, step: int) -> Collection[int]:
        self._step = step
        busy = self._without.union(self._tickets)
        return [w for w, to_come in self._versions.items() if w not in busy and to_come and to_come[0] == step]

    def ask(self, worker: int, params: Tensor, buffers: Mapping[str, Tensor], step: int) -> None:
        self._versions[worker].popleft()
        if (worker, step) in self._failing:
            self._without.add(worker)
        else:
            self._tickets[worker] = Ticket(worker, step, params, buffers)

    def next_reply(self) -> Reply | None:
        if self._step >= len(self._arrivals) or not self._arrivals[self._step]:
            return None
        worker, version, error = self._arrivals[self._step].popleft()
        if worker not in self._without and worker not in self._tickets:
            raise ValueError(
                f"A replay needs the settings of its run. Found that worker {worker}, which replied at step "
                f"{self._step}, was not asked at step {version} here. Set quarantine and the others as they were."
            )
        if error is not None:
            self._without.discard(worker)
            return Reply(worker, version, None, error, lost=True)
        if self._tickets[worker].gradient is None:
            self._compute()
        return Reply(worker, version, self._tickets.pop(worker).gradient)
