"""Trusted actors that score candidates in parallel: the paper's servers."""

import logging
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zeno.problem.dataset import Batch, as_tensor
from zeno.problem.oracle import LossOracle
from zeno.problem.problem import Problem
from zeno.workers.ray.actor import Process, as_array, search_path
from zeno.workers.ray.proxy import START_SECONDS
from zeno.workers.ray.session import find_ray

log = logging.getLogger("zeno")

LEAST_WAIT, MULTIPLE = 10.0, 4.0  # wait for scores this many seconds, or this many times what the last one took


class ScoringActor(Process):
    """Scores candidates with its own oracle of the problem, which it keeps for the step."""

    oracle: LossOracle
    step: int | None = None

    def descent(self, step: int, arrays: tuple[Any, ...], candidate: np.ndarray) -> tuple[float, str | None]:
        """The descent of a candidate, and what the loss raised if it did."""
        if step != self.step:
            params, buffers, lr, inputs, targets, own_statistics = arrays
            self.content.load_buffers({name: as_tensor(array) for name, array in buffers.items()})
            # Copied: the object store aligns small arrays to less than torch does, and that changes last bits.
            batch = Batch(as_tensor(inputs).clone(), as_tensor(targets).clone())
            self.oracle, self.step = self.content.at(as_tensor(params), lr, batch, own_statistics), step
        found, raised = self.oracle.trials([as_tensor(candidate)])
        return float(found), raised.get(0)


class RayScorers:
    """Scores on `number` actors. Ray restarts one that dies; one that hangs is removed from the group.

    The server computes the scores that are missing, so a step always has all of them. Scorers are trusted: they run on
    the server's machine, or on machines that were started with the resource `scorer` (one of it for each).
    """

    def __init__(self, problem: Problem, number: int) -> None:
        ray = find_ray()
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
        if ray.cluster_resources().get("scorer", 0) >= number:
            options |= {"resources": {"scorer": 1}, "scheduling_strategy": "SPREAD"}
        else:
            affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
            options["scheduling_strategy"] = affinity(node_id=ray.get_runtime_context().get_node_id(), soft=False)
        create = ray.remote(ScoringActor).options(**options)
        self._parcel = [ray.put(problem)]  # in a list, so that each actor fetches it, also after a restart
        self.actors = [create.remote(self._parcel, search_path()) for _ in range(number)]
        try:
            ray.get([actor.here.remote() for actor in self.actors], timeout=START_SECONDS)
        except ray.exceptions.GetTimeoutError:
            raise ValueError(
                f"Not all of {number} scorers were up after {START_SECONDS:.0f} s. Start fewer, with --scorers."
            ) from None
        self._steps = 0

    def begin(self, oracle: LossOracle, size: int) -> None:
        buffers = {name: as_array(buffer) for name, buffer in oracle.problem.buffers.items()}
        lr = float(oracle.lr)  # an engine has one rate for all
        assert isinstance(oracle.batch, Batch)
        arrays = as_array(oracle.params), buffers, lr, *map(as_array, oracle.batch), oracle.own_statistics
        self._steps += 1
        self._oracle, self._size = oracle, size
        self._arrays = find_ray().put(arrays)
        self._calls: dict[Any, tuple[int, Any]] = {}  # worker and actor
        self._candidates: dict[int, Tensor] = {}  # not scored yet

    def add(self, worker: int, candidate: Tensor) -> None:
        self._candidates[worker] = candidate
        if self.actors:
            actor = self.actors[len(self._calls) % len(self.actors)]
            ref = actor.descent.remote(self._steps, self._arrays, find_ray().put(as_array(candidate)))
            self._calls[ref] = worker, actor

    def descents(self) -> tuple[Tensor, dict[int, str]]:
        ray = find_ray()
        found = torch.full((self._size,), torch.nan, dtype=torch.float64)
        raised: dict[int, str] = {}
        began = time.monotonic()  # not at the first call: the step may have waited long for its last worker
        waiting, until = list(self._calls), began + LEAST_WAIT
        while waiting and time.monotonic() < until:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=until - time.monotonic())
            until = max(until, began + MULTIPLE * (time.monotonic() - began)) if done else until
            for ref in done:
                worker = self._calls[ref][0]
                try:
                    found[worker], text = ray.get(ref)
                    del self._candidates[worker]
                    raised |= {} if text is None else {worker: text}
                except ray.exceptions.RayError as error:
                    log.warning("a scorer failed, the server scores in its place: %s", str(error).splitlines()[0])
        for actor in {self._calls[ref][1] for ref in waiting}:
            self.actors.remove(actor)
            ray.kill(actor)
            log.warning("a scorer hangs and is removed; %d are left", len(self.actors))
        if self._candidates:
            workers = list(self._candidates)
            here, texts = self._oracle.trials(list(self._candidates.values()))
            found[workers] = here.cpu()
            raised |= {workers[row]: text for row, text in texts.items()}
        self._calls, self._candidates = {}, {}
        return found, raised

    def close(self) -> None:
        ray = find_ray()
        if ray.is_initialized():
            for actor in self.actors:
                ray.kill(actor)
