"""What workers and scorers on a Ray cluster cost on this machine, each beside the simple way, in one run.

Every function returns a dict of numbers, and uses the Ray cluster that is there, or starts one for itself. Times are
medians of runs that take turns; a ratio is the median of the ratios of neighbouring runs.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.steps import CLASSES, LR, SHAPE, M, Numbers, paper_candidates, paper_problem, samples, take_turns
from zeno.faults import Fault
from zeno.problem import models
from zeno.problem.dataset import Dataset
from zeno.problem.problem import Problem
from zeno.rules import Mean, Rule, Zeno
from zeno.server.engine import Engine
from zeno.server.scorers import Scorer, ThreadScorer
from zeno.workers.cluster import Cluster
from zeno.workers.ray import RayCluster, RayScorers, start_or_join
from zeno.workers.ray.session import find_ray
from zeno.workers.worker import Worker

D = 1_310_922  # parameters of the paper's CNN


@dataclass(frozen=True)
class Constant:
    """A worker that sends the same numbers [size] at every step, after some seconds that leave its core free."""

    index: int
    size: int
    seconds: float = 0.0

    def gradient(self, params: Tensor, buffers: Mapping[str, Tensor], step: int, fault: Fault | None = None) -> Tensor:
        if self.seconds:
            time.sleep(self.seconds)
        return self._numbers

    @cached_property
    def _numbers(self) -> Tensor:
        return 1e-3 * torch.randn(self.size, generator=torch.Generator().manual_seed(self.index))


class BareLoop:
    """The least that it takes to collect gradients on Ray: nothing is checked, and nobody may fail."""

    def __init__(self, workers: int, size: int, actors: int) -> None:
        class Plain:  # in here, so that it travels by value, and its process imports none of this
            def __init__(self) -> None:
                self.numbers = np.ones(size, np.float32)

            def gradient(self, params: np.ndarray) -> np.ndarray:
                return self.numbers

        self.params = np.zeros(size, np.float32)
        self.rows = np.empty((workers, size), np.float32)
        make = find_ray().remote(Plain).options(num_cpus=0)
        self.actors = [make.remote() for _ in range(actors)]

    def step(self) -> None:
        ray = find_ray()
        sent = ray.put(self.params)
        asked = {self.actors[i % len(self.actors)].gradient.remote(sent): i for i in range(len(self.rows))}
        while asked:
            for ref in ray.wait(list(asked), num_returns=1)[0]:
                np.copyto(self.rows[asked.pop(ref)], ray.get(ref))

    def close(self) -> None:
        for actor in self.actors:
            find_ray().kill(actor)


def need_all(errors: Mapping[int, object]) -> None:
    if errors:
        raise RuntimeError(f"This benchmark needs a reply from every worker. Found {dict(errors)}.")


def make_server(problem: Problem, rule: Rule, cluster: Cluster) -> Engine:
    dataset = Dataset(*samples(1000, seed=4), classes=CLASSES)
    optimizer = torch.optim.SGD([nn.Parameter(problem.flat.clone())], lr=1e-3)
    return Engine(problem, rule, cluster, dataset, torch.arange(len(dataset)), optimizer)


def engine(workers: int = M, size: int = D, workers_per_actor: int = 1, rounds: int = 40) -> Numbers:
    """Collecting gradients that cost nothing, as a step of the server does, beside the bare loop."""
    warm_up = 3  # steps that touch new memory
    milliseconds: dict[str, list[float]] = {"engine": [], "bare_loop": []}
    made = [Constant(i, size) for i in range(workers)]
    with start_or_join(), RayCluster(made, workers_per_actor, cpus_per_actor=0) as cluster:
        server, actors = make_server(Problem(nn.Linear(size, 1, bias=False)), Mean(), cluster), len(cluster.actors)
        with closing(BareLoop(workers, size, actors)) as loop:
            for step in range(warm_up + rounds):
                found = server.step(step)
                need_all(found.errors)
                start = time.perf_counter()
                loop.step()
                if step >= warm_up:
                    milliseconds["engine"].append(1e3 * found.seconds["gradients"])
                    milliseconds["bare_loop"].append(1e3 * (time.perf_counter() - start))
    return {"workers": workers, "actors": actors, **beside(milliseconds, "engine", "bare_loop")}


def on_arrival(workers: int = 8, seconds: float = 0.3, rounds: int = 7) -> Numbers:
    """A step of Zeno beside one of Mean while one worker takes 3 times as long; scored on arrival, or at the end.

    Times are up to the update, which is the same for all and mostly the statistics of normalisation; `whole_ratio`
    has it as well.
    """
    problem = paper_problem()
    made = [Constant(i, problem.size, 3 * seconds if i == 0 else seconds) for i in range(workers)]
    rule = Zeno(trim=workers // 4, batch_size=4)
    with start_or_join(), RayCluster(made, workers_per_actor=1, cpus_per_actor=0) as cluster:
        servers = {"mean": make_server(problem, Mean(), cluster), "zeno": make_server(problem, rule, cluster)}
        cluster.remote = False  # as if the workers needed the server's cores
        servers["at_the_end"] = make_server(problem, rule, cluster)
        whole: dict[str, list[float]] = {name: [] for name in servers}
        up_to_the_update: dict[str, list[float]] = {name: [] for name in servers}
        for step in range(rounds + 1):
            for name, server in servers.items():
                found = server.step(step)
                need_all(found.errors)
                taken = found.seconds
                if step:  # the first one warms up
                    whole[name].append(1e3 * sum(taken.values()))
                    up_to_the_update[name].append(whole[name][-1] - 1e3 * taken["update"])
        for server in servers.values():
            server.close()
    late = beside(up_to_the_update, "at_the_end", "mean")
    return {
        "workers": workers,
        **beside(up_to_the_update, "zeno", "mean"),
        "at_the_end_ms": late["at_the_end_ms"],
        "at_the_end_ratio": late["ratio"],
        "whole_ratio": beside(whole, "zeno", "mean")["ratio"],
    }


def start(workers: int = M, workers_per_actor: int = 1, size: int = D) -> Numbers:
    """Seconds until Ray is there, and from then until every worker has answered."""
    began = time.perf_counter()
    with start_or_join():
        ray_there = time.perf_counter()
        made = [Constant(i, size) for i in range(workers)]
        with RayCluster(made, workers_per_actor, cpus_per_actor=0) as cluster:
            actors, replies = len(cluster.actors), list(cluster.gradients(torch.zeros(size), {}, 0))
            ended = time.perf_counter()
            need_all({reply.worker: reply.error for reply in replies if reply.error is not None})
            del replies
    return {
        "workers": workers,
        "actors": actors,
        "ray_seconds": ray_there - began,
        "actors_seconds": ended - ray_there,
    }


def pss(pid: int) -> tuple[float, float]:
    """MB of a process, each page divided by those that share it: all of them, and those in shared memory."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]
    kilobytes = {name: float(number) for name, number, *_ in map(str.split, lines)}
    return kilobytes["Pss:"] / 1e3, kilobytes["Pss_Shmem:"] / 1e3


def memory(workers: int = M, pictures: int = 50_000, steps: int = 3) -> Numbers:
    """What an actor with one worker and CIFAR-10's size of data takes beyond one that has only imported torch."""

    class Idle:  # in here, so that it travels by value, and its process imports nothing else
        def here(self) -> int:
            import torch  # noqa: F401

            return os.getpid()

    rng = torch.Generator().manual_seed(0)
    inputs = torch.randint(256, (pictures, *SHAPE), dtype=torch.uint8, generator=rng)
    dataset = Dataset(inputs, torch.randint(CLASSES, (pictures,), generator=rng), classes=CLASSES)
    problem = Problem(models.small_cnn(SHAPE, CLASSES))
    made = [Worker(i, problem, dataset, torch.arange(pictures), 100, 0) for i in range(workers)]
    with start_or_join(), RayCluster(made, workers_per_actor=1, cpus_per_actor=0) as cluster:
        ray = find_ray()
        idle = ray.remote(Idle).options(num_cpus=0).remote()
        idle_pid = ray.get(idle.here.remote())
        for step in range(steps):
            replies = cluster.gradients(problem.flat.clone(), problem.buffers, step)
            need_all({reply.worker: reply.error for reply in replies if reply.error is not None})
        base, base_shared = pss(idle_pid)
        taken = [pss(actor.pid) for actor in cluster.actors if actor.pid is not None]
        ray.kill(idle)
    beyond = [whole - base for whole, _ in taken]
    return {
        "actors": len(taken),
        "mean_mb": statistics.mean(beyond),
        "max_mb": max(beyond),
        "of_it_shared_mb": statistics.mean(shared - base_shared for _, shared in taken),
        "idle_mb": base,
    }


def scorers(number: int = 2, n_r: int = 32, rounds: int = 5) -> Numbers:
    """The scores of 20 candidates of the paper's CNN from actors, beside the server's own."""
    problem = paper_problem()
    candidates, batch = paper_candidates(problem), samples(n_r, seed=2)
    x = problem.flat.clone()

    def scores(scorer: Scorer) -> Tensor:
        scorer.begin(problem.at(x, LR, batch), len(candidates))
        for worker, candidate in enumerate(candidates):
            scorer.add(worker, candidate)
        return scorer.descents()[0]

    with start_or_join(), closing(RayScorers(problem, number)) as group, closing(ThreadScorer()) as alone:
        same = torch.equal(scores(group), scores(alone))
        ms = take_turns({"server": lambda: scores(alone), "scorers": lambda: scores(group)}, rounds)
        left = len(group.actors)  # one that hangs leaves the group, and the server scores in its place
    return {"scorers": left, "n_r": n_r, **beside(ms, "scorers", "server"), "same_scores": same}


def beside(milliseconds: Mapping[str, list[float]], one: str, other: str) -> Numbers:
    return {
        f"{one}_ms": statistics.median(milliseconds[one]),
        f"{other}_ms": statistics.median(milliseconds[other]),
        "ratio": statistics.median(a / b for a, b in zip(milliseconds[one], milliseconds[other], strict=True)),
    }


def everything(on_numbers: Callable[[str, Numbers], None] = lambda name, numbers: None) -> dict[str, Numbers]:
    """All of it, in some minutes."""
    found: dict[str, Numbers] = {}

    def note(name: str, numbers: Numbers) -> None:
        found[name] = numbers
        on_numbers(name, numbers)

    note("start of 2 actors, 10 workers each", start(workers_per_actor=10))
    note("start of 20 actors", start())
    with start_or_join():
        note("collecting from 20 actors", engine())
        note("collecting from 2 actors, 10 workers each", engine(workers_per_actor=10))
        note("a step of Zeno with a slow worker", on_arrival())
        note("scores of 20 candidates, the paper's CNN", scorers())
        if Path("/proc/self/smaps_rollup").exists():  # on Linux only
            note("memory of each of 20 actors, data of 154 MB", memory())
    return found
