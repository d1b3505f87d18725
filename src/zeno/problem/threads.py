"""Parallel work on the cores of this machine, one torch thread per job.

One thread each, because the last bits of a sum depend on how many threads share it. So a result is the same on any
number of cores, alone or beside others, in this process or in another.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Place = TypeVar("Place")
Job = TypeVar("Job")
Result = TypeVar("Result")


def num_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Sets torch to one thread, and back on exit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def side_by_side(
    do: Callable[[Place, Job], Result], places: Sequence[Place], jobs: Iterable[Job]
) -> Iterator[tuple[Job, Result]]:
    """Yields each job with the result of `do(place, job)`, in order of completion; a place has one job at a time.

    An exception in one ends them all. At most two jobs per place are taken ahead.
    """
    if len(places) == 1:
        for job in jobs:
            with one_thread():
                result = do(places[0], job)
            yield job, result
        return
    free, waiting = deque(places), iter(jobs)

    def do_at_a_free_place(job: Job) -> Result:
        place = free.popleft()  # there is one: as many threads as places
        try:
            return do(place, job)
        finally:
            free.append(place)

    # The caller's thread is set to one as well: MKL has one count for the whole process.
    with one_thread(), ExitStack() as cleanup:
        pool = ThreadPoolExecutor(len(places), initializer=torch.set_num_threads, initargs=(1,))
        cleanup.callback(pool.shutdown, cancel_futures=True)  # waits for running jobs: none uses a place afterwards
        running = {pool.submit(do_at_a_free_place, job): job for job in islice(waiting, 2 * len(places))}
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                running |= {pool.submit(do_at_a_free_place, another): another for another in islice(waiting, 1)}
                yield job, future.result()


class Draws(TorchDispatchMode):
    """Random draws of this thread come from the seed inside, and do not affect others. For the CPU."""

    _lock = threading.Lock()

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        if any(argument.name == "generator" for argument in func._schema.arguments):
            return func(*args, **{**kwargs, "generator": self.generator})
        shared = torch.default_generator  # some functions, such as rand, take no generator: lend it our state
        with self._lock:
            outside = shared.get_state()
            shared.set_state(self.generator.get_state())
            try:
                return func(*args, **kwargs)
            finally:
                self.generator.set_state(shared.get_state())
                shared.set_state(outside)
