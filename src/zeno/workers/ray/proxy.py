"""The driver's view of one actor: what it was asked for, whether it is there, and how to get it back."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from zeno.problem.errors import text_of
from zeno.workers.checks import malformed
from zeno.workers.ray.actor import Call
from zeno.workers.ray.session import find_ray
from zeno.workers.reply import ErrorKind, Reply, ReplyError

log = logging.getLogger("zeno")

CALLS_AHEAD = 2  # gradients that an actor is asked for at once: it computes the second while the first one travels
START_SECONDS = 300.0  # that an actor may take to start
PING_SECONDS = 0.5  # between two pings of an actor that is away
CREATE_SECONDS = 10.0  # between two attempts to create an actor that Ray has given up


class ActorProxy:
    """An actor and its workers, as the driver sees them."""

    def __init__(self, workers: Sequence[int], create: Callable[[Sequence[int]], Any]) -> None:
        self.workers = workers
        self.to_ask: deque[int] = deque()  # workers that were not asked yet at this step
        self.calls: dict[Any, Call] = {}  # asked and not answered
        self.missed = 0  # deadlines since its last answer
        self.away: ReplyError | None = ReplyError(ErrorKind.LATE, "is starting")  # why it cannot be asked
        self.gone = False  # Ray has given it up
        self.ping: Any = None  # sent to an actor that is away
        self.pid: int | None = None  # of its process,
        self.machine: str | None = None  # and where that is
        self._create = create
        self._pinged = -math.inf  # when
        self._new_handle()

    def _new_handle(self) -> None:
        self.handle, self.gone = self._create(self.workers), False
        self._created = self._since = time.monotonic()  # since: when it was created or lost, whichever was last

    def ask(self, step: int, inputs: Any) -> None:
        """Asks for gradients of this step, at most `CALLS_AHEAD` at once."""
        while self.away is None and self.to_ask and len(self.calls) < CALLS_AHEAD:
            self.submit(self.to_ask.popleft(), step, inputs)

    def submit(self, worker: int, step: int, inputs: Any) -> None:
        """Asks for one gradient."""
        self.calls[self.handle.gradient.remote(worker, step, inputs)] = Call(worker, step)

    def receive(self, ref: Any, like: Tensor) -> Reply:
        """The reply to a call that is done."""
        ray, call = find_ray(), self.calls.pop(ref)
        try:
            answer = ray.get(ref, timeout=1.0)
        except ray.exceptions.GetTimeoutError:  # it was there a moment ago
            return call.failed(ReplyError(ErrorKind.LATE, "its answer was lost on the way"))
        except ray.exceptions.RayActorError as error:
            return call.failed(self._lose(error))
        except Exception as error:  # its object was lost with its machine, or cannot be unpickled, or ...
            return call.failed(malformed(f"sent what cannot be read: {text_of(error)}"))
        self.missed = 0
        return call.reply(answer, like)

    def miss(self, waited: float, patience: int) -> ReplyError:
        """Counts a missed deadline. After `patience` of them the actor is restarted."""
        self.missed += 1
        text = f"no answer in {waited:.1f} s"
        if self.missed >= patience:
            text += f", {self.missed} times in a row: restarted" if self.missed > 1 else ": restarted"
            find_ray().kill(self.handle, no_restart=False)  # Ray starts it again. Cancelling calls would not free it.
            self.calls.clear()
            self._leave(ReplyError(ErrorKind.LATE, "is being restarted: it did not answer"))
        return ReplyError(ErrorKind.LATE, text)

    def find(self) -> None:
        """Pings an actor that is away, and creates it again where Ray does not."""
        if self.away is None:
            return
        now = time.monotonic()
        if not self.gone and now - self._since > START_SECONDS:  # it hangs while it restarts
            find_ray().kill(self.handle)
            self.ping, self.gone = None, True
        if self.gone and now - self._created >= CREATE_SECONDS:
            self._new_handle()
        if self.ping is None and not self.gone and now - self._pinged >= PING_SECONDS:
            self.ping, self._pinged = self.handle.here.remote(), now

    def ponged(self) -> None:
        """Reads the answer to a ping."""
        ray, ping = find_ray(), self.ping
        self.ping = None
        try:
            self.pid, self.machine = ray.get(ping)
            self.away, self.missed = None, 0
        except ray.exceptions.ActorDiedError as error:
            self._lose(error)
        except ray.exceptions.RayError as error:
            log.debug("actor of workers %s is still away: %s", self.workers, error)

    def _lose(self, error: Exception) -> ReplyError:
        log.debug("actor of workers %s: %s", self.workers, error)
        self.gone = isinstance(error, find_ray().exceptions.ActorDiedError)
        raised = self.gone and "creation task" in str(error)  # in its constructor: the last line says what
        text = f"cannot be started: {str(error).strip().splitlines()[-1].strip()[:500]}" if raised else "died"
        return self._leave(ReplyError(ErrorKind.DIED, text))

    def _leave(self, why: ReplyError) -> ReplyError:
        self.away, self.missed, self._since = why, 0, time.monotonic()
        return why
