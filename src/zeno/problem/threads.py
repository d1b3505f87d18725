"""Work side by side on the cores of this machine, one torch thread for each piece of it.

One thread each, because the last bits of a sum depend on how many threads share it. So a result is the same on any
number of cores, alone or beside others, in this process or in another.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Place = TypeVar("Place")
Job = TypeVar("Job")
Result = TypeVar("Result")


def number() -> int:
    """Of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch works with one thread inside, and with as many as before after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def side_by_side(
    do: Callable[[Place, Job], Result], places: Sequence[Place], jobs: Iterable[Job]
) -> Iterator[tuple[Job, Result]]:
    """Each job with what `do(place, job)` returned, as they are done; a place has one job at a time.

    An exception in one ends them all. Jobs are taken only as they are needed: at most two for each place.
    """
    if len(places) == 1:
        for job in jobs:
            with one_thread():
                result = do(places[0], job)
            yield job, result
        return
    free, waiting = deque(places), iter(jobs)

    def do_somewhere(job: Job) -> Result:
        place = free.popleft()  # there is one: as many threads as places
        try:
            return do(place, job)
        finally:
            free.append(place)

    # The caller's thread is kept at one as well: MKL has one count for the whole process.
    with one_thread(), _pool(len(places)) as pool:
        under_way = {pool.submit(do_somewhere, job): job for job in islice(waiting, 2 * len(places))}
        while under_way:
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                job = under_way.pop(future)
                under_way.update({pool.submit(do_somewhere, following): following for following in islice(waiting, 1)})
                yield job, future.result()


@contextmanager
def _pool(size: int) -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(size, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)  # waits for what has begun, so that nobody writes to a place after this


class Draws(TorchDispatchMode):
    """Random draws of this thread come from the seed inside, and leave all others as they were. For the CPU."""

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
        shared = torch.default_generator  # some, such as rand, take no other: lend it our state
        with self._lock:
            outside = shared.get_state()
            shared.set_state(self.generator.get_state())
            try:
                return func(*args, **kwargs)
            finally:
                self.generator.set_state(shared.get_state())
                shared.set_state(outside)
