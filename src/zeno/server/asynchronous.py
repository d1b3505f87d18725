"""The server of an asynchronous run: it updates the model as gradients arrive, and waits for no worker.

A step is one update. Every worker has at most one ticket: it was given the parameters after so many steps, their
version, and sends one gradient. The step takes arrivals until `buffer` of them are usable, and the rule combines these.
The workers that have arrived then get the new parameters.

A worker that has arrived, with whatever it sent, gets its next ticket at the next step. So it has one row in an update
at most, and one that sends garbage at once cannot use up the steps: only usable arrivals fill the buffer. A worker
whose last ticket brought nothing usable is asked again, but the server does not count on it: the buffer is full with
the workers that are left, and the step waits for nobody who may never reply.

The staleness of an arrival is the number of steps since its version.

Shapes: m workers, d parameters.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from zeno.rules.linalg.passes import all_finite
from zeno.rules.rule import TooFewUsable
from zeno.server.clock import Clock
from zeno.server.core import Step
from zeno.server.engine import Engine
from zeno.server.members import Members
from zeno.workers.checks import NOT_FINITE, gradient_of
from zeno.workers.cluster import NOBODY
from zeno.workers.reply import ErrorKind, Reply, ReplyError


@dataclass(frozen=True)
class Asynchrony:
    """How arrivals become updates."""

    buffer: int = 1  # usable arrivals in an update
    max_staleness: int | None = None  # of a usable arrival; None: no limit
    discount: float = 0.0  # a in (1 + staleness)^-a, by which a candidate is multiplied


@dataclass(eq=False)
class Buffer:
    """What has arrived for one update."""

    rows: dict[int, Tensor]  # [d] by worker: the usable gradients, in order of arrival
    errors: dict[int, ReplyError]  # by worker: what was wrong with the others
    arrivals: list[list[int]]  # [worker, version], in order of arrival
    lost: list[int]  # workers among these from which no gradient came


class AsynchronousEngine(Engine):
    """Applies one update for every `buffer` usable arrivals."""

    def __init__(self, *parts: Any, asynchrony: Asynchrony, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.core.scorer = None  # nothing is known about the others yet when a candidate arrives
        self.asynchrony = asynchrony
        self._versions: dict[int, int] = {}  # of the ticket of each worker
        self._failed: set[int] = set()  # workers whose last ticket brought nothing usable
        self._names = [str(worker) for worker in range(self.cluster.size)]

    def step(self, number: int, skip: Collection[int] = NOBODY) -> Step:
        """One update. Workers in `skip` get no ticket."""
        buffers, oracle = self._begin(number)
        clock = Clock() if oracle is None else oracle.clock
        with self._meanwhile(oracle), clock("gradients"):
            found = self._take_arrivals(number, skip, buffers)
        there = sorted(found.rows)
        members = Members(there, self._names, [])
        step = Step(self.core, number, len(there), self.params.detach(), self._lr, members=members, oracle=oracle)
        step.seconds |= clock.seconds
        if there:
            step.receive(
                [Reply(row, number, found.rows[worker]) for row, worker in enumerate(there)], range(len(there))
            )
            step.run_rule()
        else:
            step.failure = TooFewUsable(f"No usable gradient arrived, of {len(found.arrivals)} that were asked for.")
        step.errors |= found.errors
        step.unasked = [worker for worker in members.absent if worker not in found.errors]
        step.arrivals, step.lost = found.arrivals, found.lost
        step.update(self._apply)
        return step

    def _take_arrivals(self, number: int, skip: Collection[int], buffers: Mapping[str, Tensor]) -> Buffer:
        """Takes arrivals until enough are usable, or no ticket is left."""
        found = Buffer({}, {}, [], [])
        params = self.params.detach().clone()
        while len(found.rows) < self._full(skip):
            arrived = {worker for worker, _ in found.arrivals}
            for worker in sorted(set(self.cluster.idle(number)).difference(arrived, skip)):
                self._versions[worker] = number
                self.cluster.ask(worker, params, buffers, number)
            reply = self.cluster.next_reply()
            if reply is None:
                if not set(self.cluster.idle(number)).difference(arrived, skip):
                    break
                continue
            version = self._versions[reply.worker]
            found.arrivals.append([reply.worker, version])
            usable = self._usable(reply, version, number)
            if isinstance(usable, Tensor):
                found.rows[reply.worker] = usable
                self._failed.discard(reply.worker)
            else:
                found.errors[reply.worker] = usable
                self._failed.add(reply.worker)
            if reply.lost:
                found.lost.append(reply.worker)
        return found

    def _full(self, skip: Collection[int]) -> int:
        """The usable arrivals to wait for: a buffer, or as many as there are workers to count on."""
        counted_on = set(range(self.cluster.size)).difference(self._failed, skip)
        return min(self.asynchrony.buffer, max(1, len(counted_on)))

    def _usable(self, reply: Reply, version: int, number: int) -> Tensor | ReplyError:
        """The gradient [d] of a reply to the ticket of this version; or why it is not used."""
        gradient = gradient_of(reply, version, self.params)
        if isinstance(gradient, ReplyError):
            return gradient
        staleness, most = number - version, self.asynchrony.max_staleness
        if most is not None and staleness > most:
            text = f"sent the gradient of a model that is {staleness} updates old, more than {most}"
            return ReplyError(ErrorKind.STALE, text)
        gradient = gradient.clone()  # a worker may share the memory of its gradient and write to it at any time
        if not all_finite(gradient):
            return NOT_FINITE
        return gradient.mul_((1.0 + staleness) ** -self.asynchrony.discount) if self.asynchrony.discount else gradient

    def state_to_save(self) -> dict[str, Any]:
        """As of any engine; gradients under way are not part of it, and are asked for again."""
        return {**super().state_to_save(), "failed": sorted(self._failed)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self._failed = set(state["failed"])
