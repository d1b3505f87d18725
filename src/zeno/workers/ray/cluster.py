"""Workers as actors on a Ray cluster: actors may die, hang, send anything and return; a step continues with the others.

Each actor is asked for at most two gradients ahead, so an actor that hangs delays only itself and never has a queue of
old steps. A reply that has not arrived by the deadline is missing; one that arrives later is discarded. An actor that
misses `patience` deadlines in a row is killed, since nothing else frees it, and Ray starts it again. Nobody waits for
it while it is away.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from torch import Tensor

from zeno.workers.cluster import NOBODY, Cluster, Status
from zeno.workers.ray import proxy
from zeno.workers.ray.actor import Actor, RemoteWorker, as_array, search_path
from zeno.workers.ray.deadline import Deadline
from zeno.workers.ray.proxy import ActorProxy
from zeno.workers.ray.session import find_ray, start_or_join
from zeno.workers.reply import CAME_LATE, Reply

log = logging.getLogger("zeno")


class RayCluster(Cluster):
    """Workers in actors, `workers_per_actor` in each; by default, one actor per CPU.

    Each actor reserves `cpus_per_actor` CPUs (by default 1, or less where there are fewer). The workers of a machine
    that is lost then wait until there is room for them again; with 0 they move to the machines that are left.
    """

    remote = True

    def __init__(
        self,
        workers: Sequence[RemoteWorker],
        workers_per_actor: int | None = None,
        deadline: float | None = None,
        patience: int = 3,
        address: str | None = None,
        cpus_per_actor: float | None = None,
    ) -> None:
        self.size = len(workers)
        self.workers_per_actor = workers_per_actor
        self.cpus_per_actor = cpus_per_actor
        self.deadline = Deadline(deadline)
        self.patience = patience
        self.address = address
        self.actors: list[ActorProxy] = []
        self._workers = workers
        self._to_close = ExitStack()

    def __enter__(self) -> "RayCluster":
        with ExitStack() as stack:
            stack.enter_context(start_or_join(self.address))
            stack.callback(self._kill_actors)
            self._start()
            self._to_close = stack.pop_all()
        return self

    def _start(self) -> None:
        ray, began, cpus = find_ray(), time.monotonic(), _cpus()
        each = self.workers_per_actor or max(1, math.ceil(self.size / max(cpus, 1)))
        parts = [list(range(self.size))[start : start + each] for start in range(0, self.size, each)]
        nodes = [node for node in ray.nodes() if node["Alive"]]
        share = self.cpus_per_actor
        if share is None:  # so much that each machine has room for its part of the actors, rounded up
            machines = [node["Resources"].get("CPU", 0) for node in nodes]
            share = min([1.0, *(have / math.ceil(len(parts) * have / cpus) for have in machines if have)])
        share = share if share >= 1 else math.floor(share * 1000) / 1000
        options = {"num_cpus": share, "max_restarts": -1, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}
        actors = ray.remote(Actor).options(**options)
        parcel = [ray.put(list(self._workers))]  # in a list, so that each actor fetches it
        self.actors += [ActorProxy(own, lambda own: actors.remote(parcel, search_path(), own)) for own in parts]
        self._wait_for_all(began + proxy.START_SECONDS)
        where, took = f"{len(nodes)} machine{'s' * (len(nodes) > 1)}", time.monotonic() - began
        log.info("%d workers in %d actors on a cluster of %s, started in %.1f s", self.size, len(parts), where, took)

    def _wait_for_all(self, until: float) -> None:
        """Waits until every actor is up. An actor that cannot be created ends the run: the mistake is the user's."""
        ray, report = find_ray(), time.monotonic() + 10
        while (away := [actor for actor in self.actors if actor.away is not None]) and time.monotonic() < until:
            for actor in away:
                actor.find()
            gone = next((actor.away for actor in away if actor.gone), None)
            if gone is not None:
                raise ValueError(f"A worker {gone}")
            if time.monotonic() > report:
                have = f"{_cpus():.0f} CPUs, {ray.available_resources().get('CPU', 0):.0f} of them free"
                log.info("still waiting for %d of %d actors; the cluster has %s", len(away), len(self.actors), have)
                report += 30
            for _, actor in self._ready(min(until - time.monotonic(), 5.0)):
                actor.ponged()
        if all(actor.away is not None for actor in self.actors):
            raise ValueError(
                f"None of {len(self.actors)} actors was up after {proxy.START_SECONDS:.0f} s. The cluster has "
                f"{_cpus():.0f} CPUs in all; others may use them. Start fewer actors, with more --workers-per-actor."
            )

    @property
    def status(self) -> Status:
        lost = sum(len(actor.workers) for actor in self.actors if actor.away is not None)
        late = sum(len(actor.workers) for actor in self.actors if actor.away is None and actor.missed)
        return Status(self.size - late - lost, late, lost)

    @property
    def machines(self) -> dict[int, str]:
        return {worker: actor.machine for actor in self.actors if actor.machine for worker in actor.workers}

    def gradients(
        self, params: Tensor, buffers: Mapping[str, Tensor], step: int, need: int = 1, skip: Collection[int] = NOBODY
    ) -> Iterator[Reply]:
        ray, began = find_ray(), time.monotonic()
        expected = set(range(self.size)).difference(skip)
        if not expected:
            return
        asked = [actor for actor in self.actors if expected.intersection(actor.workers)]
        until = began + self.deadline.seconds
        inputs = ray.put((as_array(params), {name: as_array(buffer) for name, buffer in buffers.items()}))
        good, last = 0, None  # gradients received, and when the last of them arrived
        for actor in self.actors:
            actor.to_ask = deque(worker for worker in actor.workers if worker in expected)
        while expected:
            for actor in self.actors:
                actor.find()
                actor.ask(step, inputs)
            computing = any(actor.away is None and expected.intersection(actor.workers) for actor in self.actors)
            if not computing and good >= need:
                break
            ready = self._ready(until - time.monotonic())
            if not ready and time.monotonic() >= until:
                break
            for ref, actor in ready:
                if ref is actor.ping:
                    actor.ponged()
                    continue
                call = actor.calls[ref]
                reply = actor.receive(ref, params)
                if call.step == step and call.worker in expected:
                    expected.discard(call.worker)
                    if reply.error is None:
                        good, last = good + 1, time.monotonic() - began
                    yield reply
                elif reply.error is None:
                    yield Reply(call.worker, call.step, None, CAME_LATE, late=True)
                del reply  # it may hold memory of the object store
        waited = time.monotonic() - began
        if last is not None:
            self.deadline.needed(last)
        elif any(actor.away is None for actor in asked):
            self.deadline.too_short(waited)
        for actor in self.actors:
            missing = expected.intersection(actor.workers)
            why = actor.miss(waited, self.patience) if missing and actor.away is None else actor.away
            for worker in sorted(missing):
                yield Reply(worker, step, None, why)

    def _ready(self, seconds: float) -> list[tuple[Any, ActorProxy]]:
        """Waits for the next answer to a call or a ping, at most this long; without any, until the next ping."""
        owners = {ref: actor for actor in self.actors for ref in (*actor.calls, actor.ping) if ref is not None}
        if not owners:
            time.sleep(max(0.0, min(proxy.PING_SECONDS, seconds)))
            return []
        ready = find_ray().wait(list(owners), num_returns=1, timeout=max(0.0, seconds))[0]
        return [(ref, owners[ref]) for ref in ready]

    def _kill_actors(self) -> None:
        ray = find_ray()
        if ray.is_initialized():
            for actor in self.actors:
                ray.kill(actor.handle)
        self.actors = []

    def __exit__(self, *error: Any) -> None:
        self._to_close.close()


def _cpus() -> float:
    """CPUs of all machines of the cluster."""
    return float(find_ray().cluster_resources().get("CPU", 0))
