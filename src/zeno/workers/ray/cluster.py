"""Workers as actors on a Ray cluster: they die, hang, lie and come back, and a step goes on with the others.

The driver trusts no actor to answer. Each is asked for at most two gradients ahead, so that one that hangs holds up
nothing but itself and never has a queue of steps that are over. What has not come by the deadline is missing; what
comes after it is dropped. An actor that lets `patience` deadlines pass without a sign is killed, which is the only
thing that frees it, and Ray starts it again. While it is away nobody waits for it.
"""

import logging
import math
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from zeno.problem.dataset import as_tensor
from zeno.workers.cluster import NOBODY, Cluster, Status
from zeno.workers.ray.session import Session, find_ray
from zeno.workers.reply import Reply, kind_of

log = logging.getLogger("zeno")

ASKED_AHEAD = 2
"""Gradients that an actor is asked for at once: it goes on with the second while the first one travels."""

START_SECONDS = 300.0
"""The longest that the first step waits for actors to start; those that take longer join later."""

ASK_AGAIN = 0.5
"""Seconds between two questions to an actor that is away whether it is back."""

OF_A_WORKER = ("raised", "malformed", "not finite")
"""Kinds of errors that a worker can tell of itself; that it died or is late is not for it to say."""

MAKE_AGAIN = 10.0
"""Seconds between two attempts at an actor that could not even be made again."""


class Computes(Protocol):
    """What a worker has to be: something that travels by pickle, such as `zeno.worker.Worker`."""

    @property
    def index(self) -> int: ...

    def gradient(self, params: Tensor, buffers: Mapping[str, Tensor], step: int) -> Tensor: ...


class Deadline:
    """Seconds that a step waits for replies: as many as were set, or a multiple of what recent steps needed.

    What a step needed is the time of the last reply that came in time, not of a typical one: 19 quick liars would
    shut out the one good worker. Steps that ran into the deadline count by what did come, so that one that hangs does
    not stretch it.
    """

    MULTIPLE, LEAST, MOST, FIRST = 4.0, 5.0, 600.0, 120.0

    def __init__(self, seconds: float | None) -> None:
        self.fixed = seconds
        self._needed: deque[float] = deque(maxlen=25)

    @property
    def seconds(self) -> float:
        if self.fixed is not None:
            return self.fixed
        if not self._needed:
            return self.FIRST
        return min(max(self.MULTIPLE * statistics.median(self._needed), self.LEAST), self.MOST)

    def needed(self, seconds: float) -> None:
        self._needed.append(seconds)

    def too_short(self, seconds: float) -> None:
        """Nobody answered in this time, though there is somebody: from here on, longer."""
        self._needed.clear()
        self._needed.append(seconds)


class Sent(NamedTuple):
    """What workers get for a step: arrays, which actors of one machine share."""

    params: np.ndarray  # [d]
    buffers: dict[str, np.ndarray]


class Answer(NamedTuple):
    """What an actor sends: numbers, or why there are none."""

    step: int
    gradient: np.ndarray | None
    error: str | None = None


class Actor:
    """Some of the workers, in a process of their own. Ray makes it, also again after its death."""

    def __init__(self, parcel: "list[Any]", own: Sequence[int], path: Sequence[str]) -> None:
        torch.set_num_threads(1)
        workers: Sequence[Computes] = unpack(parcel, path)
        self.workers = {worker.index: worker for worker in workers if worker.index in own}

    def here(self) -> int:
        return os.getpid()

    def gradient(self, worker: int, step: int, sent: Sent) -> Answer:
        params, buffers = as_tensor(sent.params), {name: as_tensor(array) for name, array in sent.buffers.items()}
        try:
            gradient: object = self.workers[worker].gradient(params, buffers, step)
            # What no gradient can be stays here: half a gigabyte would hold up the others on its way.
            if not isinstance(gradient, Tensor):
                return Answer(step, None, f"sent {type(gradient).__name__}, expected a tensor")
            if gradient.shape != params.shape:
                expected = list(params.shape)
                return Answer(step, None, f"sent numbers of shape {list(gradient.shape)}, expected {expected}")
            return Answer(step, as_array(gradient))
        except Exception as error:
            return Answer(step, None, f"raised {_in_short(error)}")


class Call(NamedTuple):
    worker: int
    step: int


@dataclass(eq=False)
class Seat:
    """An actor as the driver sees it."""

    workers: list[int]
    handle: Any
    made: float  # when
    since: float  # when it was made or went away, whichever came last
    to_ask: deque[int] = field(default_factory=deque)  # workers that were not asked yet at this step
    under_way: dict[Any, Call] = field(default_factory=dict)
    missed: int = 0  # deadlines since anything came from it
    away: str | None = "is starting"  # why it cannot be asked
    question: Any = None  # asked of one that is away: are you back?
    asked: float = -math.inf  # when
    pid: int | None = None  # of its process, on whatever machine that is
    gone: bool = False  # Ray has given it up


class RayCluster(Cluster):
    """Workers in actors, `workers_per_actor` in each; by default, as many as give every CPU one actor.

    With `cpus_per_actor` CPUs for each actor (by default 1, or less where there are fewer), workers of a machine that
    went away wait until there is room for them again; with 0 they crowd onto the machines that are left.
    """

    remote = True

    def __init__(
        self,
        workers: Sequence[Computes],
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
        self.session = Session(address)
        self.seats: list[Seat] = []
        self._workers: Sequence[Computes] = workers
        self._parcel: list[Any] = []  # the workers, in the object store; in a list, it is fetched by the actor itself
        self._actors: Any = None

    def __enter__(self) -> "RayCluster":
        self.session.__enter__()
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self) -> None:
        ray, began = find_ray(), time.monotonic()
        cpus = self.session.cpus
        each = self.workers_per_actor or max(1, math.ceil(self.size / max(cpus, 1)))
        parts = [list(range(self.size))[start : start + each] for start in range(0, self.size, each)]
        share = self.cpus_per_actor
        if share is None:  # so much that each machine has room for its part of the actors, rounded up
            machines = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
            share = min([1.0, *(have / math.ceil(len(parts) * have / cpus) for have in machines if have)])
        share = share if share >= 1 else math.floor(share * 1000) / 1000
        options = {"num_cpus": share, "max_restarts": -1, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}
        self._actors = ray.remote(Actor).options(**options)
        self._parcel = [ray.put(list(self._workers))]
        for own in parts:
            self.seats.append(Seat(own, self._make(own), began, began))
        self._wait_for_all(began + START_SECONDS)
        num = sum(node["Alive"] for node in ray.nodes())
        log.info(
            "%d workers in %d actors on a Ray cluster of %d machine%s, started in %.1f s",
            self.size, len(parts), num, "s" * (num > 1), time.monotonic() - began,
        )  # fmt: skip

    def _make(self, own: Sequence[int]) -> Any:
        return self._actors.remote(self._parcel, own, search_path())

    def _wait_for_all(self, until: float) -> None:
        """Waits until every actor is there; one that cannot be made is a bug of the user's, and ends the run."""
        ray, patience = find_ray(), time.monotonic() + 10
        while (waited_for := [seat for seat in self.seats if seat.away is not None]) and time.monotonic() < until:
            self._look_for_the_lost()
            gone = next((seat.away for seat in waited_for if seat.gone), None)
            if gone is not None:
                raise ValueError(f"A worker {gone}")
            if time.monotonic() > patience:
                have = f"{self.session.cpus:.0f} CPUs, {ray.available_resources().get('CPU', 0):.0f} of them free"
                log.info(
                    "still waiting for %d of %d actors; the cluster has %s", len(waited_for), len(self.seats), have
                )
                patience += 30
            questions = [seat.question for seat in waited_for if seat.question is not None]
            if questions:
                for ref in ray.wait(questions, num_returns=1, timeout=max(0.0, min(until - time.monotonic(), 5.0)))[0]:
                    self._heard(ref)
            else:
                time.sleep(ASK_AGAIN)
        if all(seat.away is not None for seat in self.seats):
            raise ValueError(
                f"None of {len(self.seats)} actors was up after {START_SECONDS:.0f} s. The cluster has "
                f"{self.session.cpus:.0f} CPUs in all; others may use them. Try fewer with --workers-per-actor."
            )

    @property
    def status(self) -> Status:
        lost = sum(len(seat.workers) for seat in self.seats if seat.away is not None)
        late = sum(len(seat.workers) for seat in self.seats if seat.away is None and seat.missed)
        return Status(self.size - late - lost, late, lost)

    def gradients(
        self,
        params: Tensor,
        buffers: Mapping[str, Tensor],
        step: int,
        need: int = 1,
        skip: Collection[int] = NOBODY,
    ) -> Iterator[Reply]:
        ray, began = find_ray(), time.monotonic()
        expected = set(range(self.size)).difference(skip)
        if not expected:
            return
        asked = [seat for seat in self.seats if expected.intersection(seat.workers)]
        until = began + self.deadline.seconds
        sent = ray.put(Sent(as_array(params), {name: as_array(buffer) for name, buffer in buffers.items()}))
        good, last = 0, None  # replies with numbers, and when the last of them came
        for seat in self.seats:
            seat.to_ask = deque(worker for worker in seat.workers if worker in expected)
        while expected:
            self._look_for_the_lost()
            self._ask(step, sent)
            calls = {ref: (seat, call) for seat in self.seats for ref, call in seat.under_way.items()}
            at_work = any(seat.away is None and expected.intersection(seat.workers) for seat in self.seats)
            if not at_work and good >= need:
                break
            refs = [*calls, *(seat.question for seat in self.seats if seat.question is not None)]
            left = until - time.monotonic()
            if not refs and left > 0:
                time.sleep(min(ASK_AGAIN, left))
                continue
            ready = ray.wait(refs, num_returns=1, timeout=max(0.0, left))[0] if refs else []
            if not ready:
                break
            for ref in ready:
                if ref not in calls:
                    self._heard(ref)
                    continue
                seat, call = calls[ref]
                reply = self._received(ref, seat, call)
                if call.step == step and call.worker in expected:
                    expected.discard(call.worker)
                    if reply.error is None:
                        good, last = good + 1, time.monotonic() - began
                    yield reply
                elif reply.error is None:
                    yield Reply(call.worker, call.step, None, "came late", late=True)
                del reply  # it may hold a place in the object store
        waited = time.monotonic() - began
        if last is not None:
            self.deadline.needed(last)
        elif any(seat.away is None for seat in asked):
            self.deadline.too_short(waited)
        for seat in self.seats:
            missing = expected.intersection(seat.workers)
            why = self._missed(seat, waited) if missing and seat.away is None else seat.away
            for worker in sorted(missing):
                yield Reply(worker, step, None, why)

    def _ask(self, step: int, sent: Any) -> None:
        """Asks for the gradients of this step, no more of each actor than it may have under way."""
        for seat in self.seats:
            while seat.away is None and seat.to_ask and len(seat.under_way) < ASKED_AHEAD:
                worker = seat.to_ask.popleft()
                ref = seat.handle.gradient.remote(worker, step, sent)
                seat.under_way[ref] = Call(worker, step)

    def _received(self, ref: Any, seat: Seat, call: Call) -> Reply:
        """What a call came to. Anything but an answer means that the actor is away."""
        ray = find_ray()
        del seat.under_way[ref]
        try:
            answer = ray.get(ref, timeout=1.0)
        except ray.exceptions.GetTimeoutError:  # it was there a moment ago
            return Reply(call.worker, call.step, None, "its answer was lost on the way")
        except ray.exceptions.RayActorError as error:
            self._lost(seat, error)
            return Reply(call.worker, call.step, None, seat.away)
        except Exception as error:  # its object was lost with its machine, or cannot be unpickled, or ...
            return Reply(call.worker, call.step, None, f"sent what cannot be read: {_in_short(error)}")
        seat.missed = 0
        return reply_of(answer, call)

    def _missed(self, seat: Seat, waited: float) -> str:
        """One more deadline that an actor let pass; the last that it could, and it is killed."""
        seat.missed += 1
        why = f"no answer in {waited:.1f} s"
        if seat.missed < self.patience:
            return why
        why += f", {seat.missed} times in a row: restarted" if seat.missed > 1 else ": restarted"
        self._restart(seat)
        return why

    def _lost(self, seat: Seat, error: Exception) -> None:
        ray = find_ray()
        seat.away = "died"
        seat.gone = isinstance(error, ray.exceptions.ActorDiedError)
        if seat.gone and (cause := _cause(error)):
            seat.away = f"cannot be started: {cause}"
        seat.missed, seat.since = 0, time.monotonic()
        log.debug("actor of workers %s: %s", seat.workers, error)

    def _restart(self, seat: Seat) -> None:
        """Kills an actor that hangs; Ray starts it again. Cancelling its calls would not free it."""
        find_ray().kill(seat.handle, no_restart=False)
        seat.under_way.clear()
        seat.away, seat.missed, seat.since = "is being restarted: it did not answer", 0, time.monotonic()

    def _look_for_the_lost(self) -> None:
        """Asks those that are away whether they are back."""
        now = time.monotonic()
        for seat in self.seats:
            if seat.away is None:
                continue
            if not seat.gone and now - seat.since > START_SECONDS:  # it hangs on its way back
                find_ray().kill(seat.handle)
                seat.question, seat.gone = None, True
            if seat.gone and now - seat.made >= MAKE_AGAIN:
                seat.handle, seat.made, seat.since, seat.gone = self._make(seat.workers), now, now, False
            if seat.question is not None:
                continue
            if not seat.gone and now - seat.asked >= ASK_AGAIN:
                seat.question, seat.asked = seat.handle.here.remote(), now

    def _heard(self, ref: Any) -> None:
        ray = find_ray()
        seat = next(seat for seat in self.seats if seat.question is ref)
        seat.question = None
        try:
            seat.pid = ray.get(ref)
        except ray.exceptions.RayError as error:
            if isinstance(error, ray.exceptions.ActorDiedError):
                self._lost(seat, error)
        else:
            seat.away, seat.missed = None, 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ray = find_ray()
        if ray.is_initialized():
            for seat in self.seats:
                ray.kill(seat.handle)
        self.seats, self._parcel = [], []
        self.session.__exit__(kind, error, trace)


def reply_of(answer: object, call: Call) -> Reply:
    """The reply in what came from an actor, of which nothing is taken on trust; the server looks at the numbers."""
    if type(answer) is not Answer or type(answer.step) is not int:
        return Reply(call.worker, call.step, None, f"sent {type(answer).__name__}, expected an answer")
    if answer.error is not None:
        error = str(answer.error)[:1000]
        return Reply(call.worker, call.step, None, error if kind_of(error) in OF_A_WORKER else f"raised {error}")
    array = answer.gradient
    if type(array) is not np.ndarray or array.dtype != np.float32:
        found = array.dtype if type(array) is np.ndarray else type(array).__name__
        return Reply(call.worker, call.step, None, f"sent {found}, expected float32")
    return Reply(call.worker, answer.step, as_tensor(array))


def search_path() -> list[str]:
    """Where this process finds modules, so that actors on this machine find the user's own as well."""
    return [os.getcwd(), *filter(None, sys.path)]


def unpack(parcel: "list[Any]", path: Sequence[str]) -> Any:
    """What was put into the object store; actors fetch it themselves, each time that they start."""
    sys.path.extend(place for place in path if place not in sys.path)
    return find_ray().get(parcel[0])


def as_array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _in_short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def _cause(error: BaseException) -> str:
    """The last line of what an actor's constructor raised, if it did."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:500] if lines and "creation task" in str(error) else ""
