"""Jobs in separate processes: one that dies loses its job, and nothing else."""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from typing import Any, TypeVar

import torch

from zeno.training.interrupt import Interrupt

Job = TypeVar("Job")
Message = TypeVar("Message")
Result = TypeVar("Result")

TICK = 0.2  # seconds between two calls of `check`, at most


@dataclass(frozen=True)
class Failed:
    """In place of a result: the job raised an error, or its process died."""

    error: str


def in_processes(
    do: Callable[[Job, Callable[[Message], None]], Result],
    jobs: Iterable[Job],
    processes: int,
    on_message: Callable[[Job, Message], None],
    check: Callable[[], None],
) -> Iterator[tuple[Job, Result | Failed]]:
    """Yields each job with the result of `do(job, send)`, as they finish; ends early once `check()` raises.

    Whatever `do` passes to `send` reaches `on_message(job, message)` in this process. `do`, jobs, messages and results
    are pickled. Processes are reused, have one torch thread each, and end when this process ends, however it ends.
    """
    waiting, slots = deque(jobs), list[_Slot]()
    try:
        while waiting or any(slot.jobs for slot in slots):
            check()
            starting = sum(not slot.jobs for slot in slots)
            for _ in range(min(processes - len(slots), len(waiting) - starting)):
                slots.append(_Slot(do))
            for ready in connection.wait([slot.connection for slot in slots], TICK):
                slot = next(slot for slot in slots if slot.connection is ready)
                done = list(slot.jobs)
                try:
                    finished, value = slot.connection.recv()
                except (EOFError, OSError):
                    slots.remove(slot)
                    value = Failed(f"died: {slot.end(patience=10)}")
                    if not done:
                        raise RuntimeError(f"A process died before it received a job: {value.error}.") from None
                else:
                    if not finished:
                        on_message(done[0], value)
                        continue
                    slot.jobs.clear()
                    if waiting:
                        slot.give(waiting.popleft())
                    else:
                        slots.remove(slot)
                        slot.end()
                yield from ((job, value) for job in done)
    finally:
        for slot in slots:
            slot.end()


class _Slot:
    """A process and the job it works on."""

    def __init__(self, do: Callable[..., Any]) -> None:
        self.jobs: list[Any] = []  # one, or none while the process starts
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(do, theirs), daemon=True)
        with _signals_blocked():
            self.process.start()
        theirs.close()

    def give(self, job: object) -> None:
        self.jobs.append(job)
        with suppress(OSError):  # the process is gone; the next recv on its connection reports that
            self.connection.send(job)

    def end(self, patience: float = 0) -> str:
        """Kills the process unless it ends within `patience` seconds; returns how it ended."""
        self.connection.close()
        self.process.join(patience)
        self.process.kill()
        self.process.join()
        code = self.process.exitcode or 0
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """A process started inside inherits the block: only this process reacts to Ctrl-C, also while the other starts."""
    if sys.platform == "win32":
        yield
    else:
        resource_tracker.ensure_running()  # otherwise the start does this, and unblocks the signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, Interrupt.SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(do: Callable[..., Any], jobs: "connection.Connection[Any, Any]") -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    with suppress(EOFError, OSError):  # the other end is closed: no more jobs
        jobs.send((True, None))  # ready
        while True:
            job = jobs.recv()
            try:
                result = do(job, lambda message: jobs.send((False, message)))
            except Exception as error:
                result = Failed(f"{type(error).__name__}: {error}")
            jobs.send((True, result))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
