"""Scoring on arrival: candidates are scored while others are still being computed."""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor

from zeno.problem.oracle import LossOracle


class Scorer(Protocol):
    """Computes descents, one step at a time: `begin`, `add` each candidate, then read the `descents`."""

    def begin(self, oracle: LossOracle, size: int) -> None:
        """Starts a step of `size` workers."""

    def add(self, worker: int, candidate: Tensor) -> None:
        """Scores a candidate [d], which must not change until the step is over."""

    def descents(self) -> tuple[Tensor, dict[int, str]]:
        """[m] in float64, NaN where nothing was added, and what the loss raised, by worker; waits for all of them."""

    def close(self) -> None: ...


class ThreadScorer:
    """Scores in a second thread, on all cores, whatever has arrived since it last looked."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),))

    def begin(self, oracle: LossOracle, size: int) -> None:
        self._oracle = oracle
        self._descents = torch.full((size,), torch.nan, dtype=torch.float64)
        self._raised: dict[int, str] = {}
        self._arrived: deque[tuple[int, Tensor]] = deque()
        self._jobs: list[Future[None]] = []

    def add(self, worker: int, candidate: Tensor) -> None:
        self._arrived.append((worker, candidate))
        self._jobs.append(self._pool.submit(self._score_arrived))

    def _score_arrived(self) -> None:
        waiting = self._arrived
        arrived = dict(waiting.popleft() for _ in range(len(waiting)))
        if arrived:
            workers = list(arrived)
            found, raised = self._oracle.trials(list(arrived.values()))
            self._descents[workers] = found.cpu()
            self._raised |= {workers[row]: text for row, text in raised.items()}

    def descents(self) -> tuple[Tensor, dict[int, str]]:
        for job in self._jobs:
            job.result()
        return self._descents, self._raised

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
