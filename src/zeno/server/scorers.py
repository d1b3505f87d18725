"""Scores on arrival: the descent of a candidate is worked out while others are still on their way."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor

from zeno.problem import Oracle


class Scorer(Protocol):
    """Works out descents, those of one step at a time: `begin`, `add` what arrives, then take the `descents`."""

    def begin(self, oracle: Oracle, size: int) -> None:
        """A step of `size` workers whose candidates the oracle is to be asked about."""
        ...

    def add(self, worker: int, candidate: Tensor) -> None:
        """A candidate [d] that stays as it is until the step is over."""
        ...

    def descents(self) -> Tensor:
        """[m] in float64, NaN where nothing was added; waits for what is not done yet."""
        ...

    def close(self) -> None: ...


class ThreadScorer:
    """In a thread beside the one that collects replies; all that arrived since it last looked, on all cores."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),))
        self._lock = threading.Lock()

    def begin(self, oracle: Oracle, size: int) -> None:
        self._score: Callable[[list[Tensor]], Tensor] = oracle
        self._descents = torch.full((size,), torch.nan, dtype=torch.float64)
        self._arrived: list[tuple[int, Tensor]] = []
        self._under_way: list[Future[None]] = []

    def add(self, worker: int, candidate: Tensor) -> None:
        with self._lock:
            self._arrived.append((worker, candidate))
        self._under_way.append(self._pool.submit(self._score_what_arrived))

    def _score_what_arrived(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, []
        if arrived:
            self._descents[[worker for worker, _ in arrived]] = self._score([one for _, one in arrived]).cpu()

    def descents(self) -> Tensor:
        for future in self._under_way:
            future.result()
        return self._descents

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
