"""A group of trusted actors that score candidates in parallel: the paper's servers."""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zeno.problem import Oracle, Problem
from zeno.problem.dataset import Batch, as_tensor
from zeno.workers.ray.cluster import START_SECONDS, as_array, search_path, unpack
from zeno.workers.ray.session import find_ray

log = logging.getLogger("zeno")

LEAST_WAIT, MULTIPLE = 10.0, 4.0
"""Scores of a step are waited for this many seconds, or this many times as long as the ones that came took."""


class Question(NamedTuple):
    """What an oracle is made of, as arrays."""

    params: np.ndarray  # [d]
    buffers: dict[str, np.ndarray]
    lr: float
    inputs: np.ndarray
    targets: np.ndarray
    own_statistics: bool | None


class ScoringActor:
    """Asks an oracle of its own, which it keeps for the step."""

    def __init__(self, parcel: "list[Any]", path: Sequence[str]) -> None:
        torch.set_num_threads(1)
        self.problem: Problem = unpack(parcel, path)
        self._step: int | None = None
        self._oracle: Oracle | None = None

    def here(self) -> int:
        return os.getpid()

    def descent(self, step: int, question: Question, candidate: np.ndarray) -> float:
        if self._oracle is None or step != self._step:
            self.problem.load_buffers({name: as_tensor(array) for name, array in question.buffers.items()})
            # Copied: the object store aligns small arrays to less than torch does, and that changes last bits.
            batch = Batch(as_tensor(question.inputs).clone(), as_tensor(question.targets).clone())
            self._oracle = self.problem.at(as_tensor(question.params), question.lr, batch, question.own_statistics)
            self._step = step
        return float(self._oracle([as_tensor(candidate)])[0])


class RayScorers:
    """Scores on `number` actors. One that dies is asked again when it is back; one that hangs leaves the group.

    What they leave undone the server works out by itself, so a step never lacks a score. Scorers are trusted: they run
    on the server's own machine, or on those that were started with the resource `scorer` (one of it for each).
    """

    def __init__(self, problem: Problem, number: int) -> None:
        ray = find_ray()
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
        if ray.cluster_resources().get("scorer", 0) >= number:
            options |= {"resources": {"scorer": 1}, "scheduling_strategy": "SPREAD"}
        else:
            here = ray.get_runtime_context().get_node_id()
            affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
            options |= {"scheduling_strategy": affinity(node_id=here, soft=False)}
        make = ray.remote(ScoringActor).options(**options)
        self._parcel = [ray.put(problem)]  # in a list, it is fetched by the actor itself, also when it starts again
        self.actors = [make.remote(self._parcel, search_path()) for _ in range(number)]
        try:
            ray.get([actor.here.remote() for actor in self.actors], timeout=START_SECONDS)
        except ray.exceptions.GetTimeoutError:
            raise ValueError(f"Not all of {number} scorers were up after {START_SECONDS:.0f} s. Try fewer.") from None
        self._steps = 0

    def begin(self, oracle: Oracle, size: int) -> None:
        buffers: Mapping[str, Tensor] = oracle.problem.buffers
        question = Question(
            as_array(oracle.params),
            {name: as_array(buffer) for name, buffer in buffers.items()},
            float(oracle.lr),  # an engine has one rate for all
            as_array(oracle.batch.inputs),
            as_array(oracle.batch.targets),
            oracle.own_statistics,
        )
        self._steps += 1
        self._oracle, self._size = oracle, size
        self._question = find_ray().put(question)
        self._asked: dict[Any, tuple[int, Any]] = {}  # worker and actor
        self._candidates: dict[int, Tensor] = {}

    def add(self, worker: int, candidate: Tensor) -> None:
        self._candidates[worker] = candidate
        if self.actors:
            actor = self.actors[len(self._asked) % len(self.actors)]
            ref = actor.descent.remote(self._steps, self._question, find_ray().put(as_array(candidate)))
            self._asked[ref] = worker, actor

    def descents(self) -> Tensor:
        ray = find_ray()
        found = torch.full((self._size,), torch.nan, dtype=torch.float64)
        began = time.monotonic()  # not when the first was asked: the step may have waited long for its last worker
        waiting, until = list(self._asked), began + LEAST_WAIT
        while waiting and time.monotonic() < until:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=until - time.monotonic())
            until = max(until, began + MULTIPLE * (time.monotonic() - began)) if done else until
            for ref in done:
                try:
                    found[self._asked[ref][0]] = ray.get(ref)
                except ray.exceptions.RayError as error:
                    log.warning("a scorer failed, the server scores in its place: %s", str(error).splitlines()[0])
                else:
                    del self._candidates[self._asked[ref][0]]
        for actor in {self._asked[ref][1] for ref in waiting}:
            self.actors.remove(actor)
            ray.kill(actor)
            log.warning("a scorer hangs and is left out; %d are left", len(self.actors))
        if self._candidates:
            found[list(self._candidates)] = self._oracle(list(self._candidates.values())).cpu()
        self._asked, self._candidates = {}, {}
        return found

    def close(self) -> None:
        ray = find_ray()
        if ray.is_initialized():
            for actor in self.actors:
                ray.kill(actor)
