"""Asynchronous workers in this process: an event simulation, in which only the order of the replies is simulated."""

import heapq
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from zeno.problem.problem import Problem
from zeno.problem.threads import side_by_side
from zeno.workers.local import QUICK, LocalCluster
from zeno.workers.reply import Reply
from zeno.workers.worker import Worker


@dataclass(eq=False)
class Ticket:
    """A gradient that a worker was asked for, on one version of the model."""

    worker: int
    step: int
    params: Tensor  # [d], of this version
    buffers: Mapping[str, Tensor]
    gradient: Tensor | None = None  # once it is computed


class SimulatedCluster(LocalCluster):
    """Workers that reply in the order of their simulated times: `delay(worker, step)` after they were asked.

    A worker that is asked at time t replies at t + delay. The gradients are the real ones, each on the parameters that
    its worker was given. They are computed when the first of them is due, all that were asked for by then side by side.
    Replies at the same time are in the order of the workers.
    """

    def __init__(self, workers: Sequence[Worker], delay: Callable[[int, int], float]) -> None:
        super().__init__(workers)
        self.delay = delay
        self.now = 0.0  # simulated time
        self._due: list[tuple[float, int]] = []  # a heap: when a worker replies
        self._tickets: dict[int, Ticket] = {}  # by worker

    def idle(self, step: int) -> Collection[int]:
        return [worker for worker in range(self.size) if worker not in self._tickets]

    def ask(self, worker: int, params: Tensor, buffers: Mapping[str, Tensor], step: int) -> None:
        self._tickets[worker] = Ticket(worker, step, params, buffers)
        heapq.heappush(self._due, (self.now + self.delay(worker, step), worker))

    def next_reply(self) -> Reply | None:
        if not self._due:
            return None
        self.now, worker = heapq.heappop(self._due)
        if self._tickets[worker].gradient is None:
            self._compute()
        ticket = self._tickets.pop(worker)
        return Reply(worker, ticket.step, ticket.gradient)

    def _compute(self) -> None:
        """All gradients that were asked for."""
        missing = [ticket for ticket in self._tickets.values() if ticket.gradient is None]
        own = {name: buffer.clone() for name, buffer in self.problem.buffers.items()}  # the newest: the server's
        quick = self._seconds < QUICK
        few = self.workers[0].dataset.batch(self.workers[0].shard[:4])
        number = 1 if quick else min(torch.get_num_threads(), len(missing))

        def gradient(problem: Problem, ticket: Ticket) -> Tensor:
            began = time.perf_counter()
            worker = replace(self.workers[ticket.worker], problem=problem)
            found = worker.gradient(ticket.params, ticket.buffers, ticket.step)
            self._seconds = min(self._seconds, (time.perf_counter() - began) / worker.local_steps)
            return found

        for ticket, found in side_by_side(gradient, self.problem.replicas(number, few), missing):
            ticket.gradient = found
        self.problem.load_buffers(own)
