"""Asynchronous workers on a Ray cluster: one ticket for each worker, and replies in the order in which they arrive.

Nobody waits for an actor: the others go on. A deadline only decides when an actor is taken to hang. It applies to the
time since the actor last answered, while it has something to do. An actor that misses `patience` deadlines in a row is
killed, and Ray starts it again; its tickets are lost. All replies that are there take turns, so an actor that answers
at once cannot keep the others out.

A worker that is much slower than the others would be killed before each of its answers. So the default deadline of an
actor doubles each time that it is killed, until it sends something usable.

Answers that came while the server was busy are read before deadlines are checked, and deadlines are checked before an
answer is returned: a server that always finds an answer still notices an actor that hangs.
"""

import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from zeno.rules.linalg.passes import all_finite
from zeno.workers.checks import NOT_FINITE, gradient_of
from zeno.workers.ray import proxy
from zeno.workers.ray.actor import as_array
from zeno.workers.ray.cluster import RayCluster
from zeno.workers.ray.deadline import Deadline
from zeno.workers.ray.proxy import ActorProxy
from zeno.workers.ray.session import find_ray
from zeno.workers.reply import Reply, ReplyError


class AsynchronousRayCluster(RayCluster):
    """A RayCluster whose workers are asked one by one."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self._like: Tensor | None = None  # the parameters [d] of some version
        self._inputs: tuple[int, Any] | None = None  # the newest version, and its parameters in the object store
        self._lost: deque[Reply] = deque()  # of tickets that ended without an answer
        self._arrived: deque[tuple[Any, ActorProxy, float]] = deque()  # answers in order, and the seconds each took
        self._heard: dict[int, float] = {}  # by actor: when it last answered or began, or missed a deadline
        self._took: dict[int, float] = {}  # by actor: seconds of its last gradient
        self._times: dict[int, float] = {}  # by actor: how many deadlines it has for one; not there: 1
        self._left = 0.0  # when `next_reply` last returned, or a worker was asked after it

    def idle(self, step: int) -> Collection[int]:
        busy = {call.worker for actor in self.actors for call in actor.calls.values()}
        busy |= {reply.worker for reply in self._lost}
        return [i for actor in self.actors if actor.away is None for i in actor.workers if i not in busy]

    def ask(self, worker: int, params: Tensor, buffers: Mapping[str, Tensor], step: int) -> None:
        if self._inputs is None or self._inputs[0] != step:
            arrays = as_array(params), {name: as_array(buffer) for name, buffer in buffers.items()}
            self._inputs = step, find_ray().put(arrays)
        self._like = params
        self._return_to_workers()
        number, actor = next((n, actor) for n, actor in enumerate(self.actors) if worker in actor.workers)
        if not actor.calls:
            self._heard[number] = self._left
        actor.submit(worker, step, self._inputs[1])

    def next_reply(self) -> Reply | None:
        self._return_to_workers()
        try:
            return self._next_reply()
        finally:
            self._left = time.monotonic()

    def _return_to_workers(self) -> None:
        """Counts the time since `next_reply` for the workers' deadlines, at most half of a deadline.

        So no actor misses a deadline only because the server paused, as for an evaluation.
        """
        now = time.monotonic()
        excused = max(0.0, now - self._left - self.deadline.seconds / 2)
        self._heard = {number: heard + excused for number, heard in self._heard.items()}
        self._left = now

    def _next_reply(self) -> Reply | None:
        until = time.monotonic() + self.deadline.seconds  # for an actor to come back, if all are away
        while True:
            for actor in self.actors:
                actor.find()
            under_way = self._arrived or self._lost or any(actor.calls for actor in self.actors)
            if not under_way and any(actor.away is None for actor in self.actors):
                return None
            back = self._poll(0.0 if self._arrived or self._lost else self._patience())
            self._check_deadlines()
            if self._lost:
                return self._lost.popleft()
            if self._arrived:
                return self._receive(*self._arrived.popleft())
            if not under_way and (back or time.monotonic() >= until):
                return None

    def _poll(self, seconds: float) -> bool:
        """Notes all answers that are there, after waiting for one at most so long; returns if an actor is back."""
        ray, known = find_ray(), {ref for ref, *_ in self._arrived}
        owners = {ref: actor for actor in self.actors for ref in (*actor.calls, actor.ping) if ref is not None}
        waiting = [ref for ref in owners if ref not in known]
        if not waiting:
            time.sleep(seconds)
            return False
        ready, waiting = ray.wait(waiting, num_returns=1, timeout=seconds)
        ready += ray.wait(waiting, num_returns=len(waiting), timeout=0)[0] if ready and waiting else []
        now, back = time.monotonic(), False
        seconds_of = {number: now - heard for number, heard in self._heard.items()}
        for ref in ready:
            actor = owners[ref]
            if ref is actor.ping:
                actor.ponged()
                back = back or actor.away is None
            else:
                number = self.actors.index(actor)
                self._arrived.append((ref, actor, seconds_of[number]))
                self._heard[number] = now
        return back

    def _patience(self) -> float:
        """Seconds until the next deadline or ping."""
        now = time.monotonic()
        ends = [self._heard[n] + self._deadline_of(n) - now for n, actor in enumerate(self.actors) if actor.calls]
        pings = [proxy.PING_SECONDS for actor in self.actors if actor.away is not None]
        return max(0.0, min([*ends, *pings, self.deadline.seconds]))

    def _deadline_of(self, number: int) -> float:
        return self.deadline.longer(self._times.get(number, 1.0))

    def _receive(self, ref: Any, actor: ActorProxy, seconds: float) -> Reply:
        assert self._like is not None  # somebody was asked
        number, call = self.actors.index(actor), actor.calls[ref]
        reply = actor.receive(ref, self._like)
        gradient = gradient_of(reply, call.step, self._like)
        error = gradient if isinstance(gradient, ReplyError) else None if all_finite(gradient) else NOT_FINITE
        if error is None:
            self._took[number] = seconds
            self._times.pop(number, None)
            # That of the slowest: otherwise quick faulty workers could shut out a good one.
            self.deadline.needed(max(self._took.values()))
        return reply if error is None else replace(call.failed(error), lost=True)

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        answered = [actor for _, actor, _ in self._arrived]
        for number, actor in enumerate(self.actors):
            if not actor.calls or actor.away is not None or actor in answered:
                continue
            if now - self._heard[number] >= self._deadline_of(number):
                calls, waited = list(actor.calls.values()), now - self._heard[number]
                why = actor.miss(waited, self.patience)
                self._heard[number] = now
                if not actor.calls:  # it was killed
                    self._took.pop(number, None)
                    self._times[number] = min(2 * self._times.get(number, 1.0), Deadline.MOST / Deadline.LEAST)
                    self._lost += [replace(call.failed(why), lost=True) for call in calls]
