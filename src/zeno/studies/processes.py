"""Work in processes of their own: one that dies takes its job with it, and nothing else."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from typing import Any, TypeVar

import torch

from zeno.training.interrupt import Stop

Job = TypeVar("Job")
Result = TypeVar("Result")

TICK = 0.2  # seconds from one look at whether to stop to the next


@dataclass(frozen=True)
class Died:
    """In place of a result: the process that had the job is gone."""

    how: str


def in_processes(
    do: Callable[[Job], Result], jobs: Iterable[Job], processes: int, stop: Callable[[], object] = lambda: None
) -> Iterator[tuple[Job, Result | Died]]:
    """Each job with what `do(job)` returned, as they are done; ends early once `stop()` is true.

    Processes are reused, have one torch thread each, and end with this one, however it ends. `do` and the jobs are
    pickled. An exception in `do` ends its process.
    """
    waiting, places = deque(jobs), list[_Place]()
    try:
        while (waiting or any(place.busy for place in places)) and not stop():
            starting = sum(not place.busy for place in places)
            for _ in range(min(processes - len(places), len(waiting) - starting)):
                places.append(_Place(do))
            for ready in connection.wait([place.connection for place in places], TICK):
                place = next(place for place in places if place.connection is ready)
                done = list(place.jobs)
                try:
                    result = place.connection.recv()
                except (EOFError, OSError):
                    places.remove(place)
                    result = Died(place.end(patience=10))
                    if not done:
                        raise RuntimeError(f"A process died before it had anything to do: {result.how}.") from None
                else:
                    place.jobs.clear()
                    if waiting:
                        place.give(waiting.popleft())
                    else:
                        places.remove(place)
                        place.end()
                yield from ((job, result) for job in done)
    finally:
        for place in places:
            place.end()


class _Place:
    """A process, and the job that it has."""

    def __init__(self, do: Callable[[Any], Any]) -> None:
        self.jobs: list[Any] = []  # one, or none while it starts
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(do, theirs), daemon=True)
        resource_tracker.ensure_running()  # it is the start's, and would let the signals through
        # Signals that are held back here stay so in the new process: Ctrl-C is for this one to decide on.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, Stop.SIGNALS)
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    @property
    def busy(self) -> bool:
        return bool(self.jobs)

    def give(self, job: object) -> None:
        self.jobs.append(job)
        with suppress(OSError):  # it is gone, as the next look at its connection says
            self.connection.send(job)

    def end(self, patience: float = 0) -> str:
        """Ends the process if it does not do so within some seconds, and says how it ended."""
        self.connection.close()
        self.process.join(patience)
        self.process.kill()
        self.process.join()
        code = self.process.exitcode or 0
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _serve(do: Callable[[Any], Any], jobs: "connection.Connection[Any, Any]") -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    with suppress(EOFError, OSError):  # nobody wants more
        jobs.send(None)  # ready
        while True:
            jobs.send(do(jobs.recv()))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
