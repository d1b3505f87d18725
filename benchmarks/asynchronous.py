"""Asynchronous runs: what a slow worker costs on Ray, and what faulty and flooding workers cost in a simulation.

    python -m benchmarks asynchronous                               # one of eight workers is ten times slower, on Ray
    python -m benchmarks.asynchronous accuracy --data FOLDER        # the same on MNIST, up to an accuracy
    python -m benchmarks.asynchronous faults --task digits          # every fault on 6 of 10 workers
    python -m benchmarks.asynchronous flood --task mnist --data FOLDER

A worker of the first two computes its gradient and then sleeps, so that eight of them do not compete for the cores of a
small machine.
"""

import argparse
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

import zeno
from benchmarks.steps import Numbers
from zeno.training import build
from zeno.workers.cluster import NOBODY, ClusterWrapper
from zeno.workers.ray import start_or_join
from zeno.workers.reply import Reply
from zeno.workers.worker import Worker

WORKERS, SLOW = 8, 10  # one of the workers takes so many times as long
ON_RAY = zeno.ExecutionSettings(cluster="ray", workers_per_actor=1, cpus_per_actor=0)


@dataclass(frozen=True)
class Sleeping:
    """A worker that takes at least some seconds for a gradient, most of which leave its core free."""

    worker: Worker
    seconds: float

    @property
    def index(self) -> int:
        return self.worker.index

    @property
    def problem(self) -> zeno.Problem:
        return self.worker.problem

    def gradient(self, params: Tensor, buffers: Mapping[str, Tensor], step: int) -> Tensor:
        began = time.monotonic()
        found = self.worker.gradient(params, buffers, step)
        time.sleep(max(0.0, self.seconds - (time.monotonic() - began)))
        return found


class Begun(ClusterWrapper):
    """A cluster that notes when its workers are there, and training begins."""

    began = math.nan

    def __init__(self, cluster: zeno.Cluster) -> None:
        super().__init__(cluster)
        self.remote = cluster.remote

    def __enter__(self) -> "Begun":
        super().__enter__()
        self.began = time.monotonic()
        return self

    def gradients(
        self, params: Tensor, buffers: Mapping[str, Tensor], step: int, need: int = 1, skip: Collection[int] = NOBODY
    ) -> Iterator[Reply]:
        return self.cluster.gradients(params, buffers, step, need, skip)


class Enough(Exception):  # noqa: N818
    """The run has shown what was to be measured."""


def on_ray(run: zeno.Run, seconds: Sequence[float], target: float = 2.0) -> list[tuple[float, zeno.Record]]:
    """The records of a run on Ray up to a target accuracy, each with the seconds since training began.

    Worker i takes `seconds[i]`.
    """
    make = build._ray_cluster
    found: list[tuple[float, zeno.Record]] = []
    clusters: list[Begun] = []

    def slowed(run: zeno.Run, workers: list[Worker], execution: zeno.ExecutionSettings) -> zeno.Cluster:
        sleeping: Any = [Sleeping(worker, seconds[worker.index]) for worker in workers]
        clusters.append(Begun(make(run, sleeping, execution)))
        return clusters[0]

    def note(record: zeno.Record) -> None:
        found.append((time.monotonic(), record))
        if record.accuracy is not None and record.accuracy >= target:
            raise Enough

    build._ray_cluster = slowed
    try:
        with suppress(Enough):
            zeno.train(run, execution=ON_RAY, on_record=note)
    finally:
        build._ray_cluster = make
    return [(at - clusters[0].began, record) for at, record in found]


def slow_worker(gradient_seconds: float = 1.0, seconds: float = 60.0, task: str = "digits") -> Numbers:
    """Updates per second with one slow worker of eight, without it, and of a synchronous run with it."""
    asynchronous = zeno.Run(
        task=task, workers=WORKERS, steps=1, batch_size=32, rule="mean", asynchronous=True, eval_every=10**6
    )
    arrivals = int(seconds / gradient_seconds)  # of one worker that is not slow
    times = [gradient_seconds] * (WORKERS - 1) + [SLOW * gradient_seconds]
    others = replace(asynchronous, workers=WORKERS - 1, steps=arrivals * (WORKERS - 1))
    with start_or_join():
        alone = on_ray(others, times)
        beside = on_ray(replace(asynchronous, steps=others.steps + arrivals // SLOW), times)
        waiting = on_ray(replace(asynchronous, asynchronous=False, steps=max(3, arrivals // SLOW)), times)
    rates = [len(run) / run[-1][0] for run in (alone, beside, waiting)]
    names = ("updates_per_second_of_seven", "updates_per_second", "synchronous_steps_per_second")
    return {"gradient_seconds": gradient_seconds, **dict(zip(names, rates, strict=True)), "ratio": rates[1] / rates[0]}


def accuracy(
    task: str = "mnist",
    data: str | None = None,
    model: str = "small_cnn",
    gradient_seconds: float = 0.5,
    steps: int = 60,
    buffer: int = 4,
) -> Numbers:
    """Seconds until an asynchronous run is as accurate as a synchronous one at its end; one slow worker of eight."""
    synchronous = zeno.Run(
        task=task, data=data, model=model, workers=WORKERS, steps=steps, batch_size=32, rule="mean", eval_every=steps
    )
    synchronous = replace(synchronous, eval_samples=1000)
    times = [gradient_seconds] * (WORKERS - 1) + [SLOW * gradient_seconds]
    with start_or_join():
        waiting = on_ray(synchronous, times)
        target, whole = waiting[-1][1].accuracy or 0.0, waiting[-1][0]
        ongoing = replace(synchronous, asynchronous=True, buffer=buffer, steps=SLOW * steps, eval_every=5)
        seconds, last = on_ray(ongoing, times, target)[-1]
    if last.accuracy is None or last.accuracy < target:
        seconds = float("nan")
    return {
        "synchronous_accuracy": target,
        "synchronous_seconds": whole,
        "seconds_to_it": seconds,
        "updates_to_it": last.step + 1,
        "ratio": seconds / whole,
    }


def faults(task: str, data: str | None, names: Sequence[str], steps: int = 300, seed: int = 0) -> None:
    """Prints the accuracy with 6 of 10 workers faulty, in order of the faults; as many arrivals for every rule."""
    run = zeno.Run(
        task=task, data=data, workers=10, steps=steps, eval_every=steps, asynchronous=True, delay="uniform(0, 10)"
    )
    run = replace(run, buffer=5, faulty=6, server_data=0.05, seed=seed)
    good = accuracy_of(replace(run, fault="crash", rule="mean(least=1)"))
    server = accuracy_of(replace(run, rule="server_alone"))
    print(f"good workers alone {good:.1f}, server alone {server:.1f}", flush=True)
    print("| fault | zeno_auto, buffers of 5 | zenopp, each arrival |\n|---|---:|---:|")
    for fault in names or zeno.FAULTS:
        ours = accuracy_of(replace(run, fault=fault, rule="zeno_auto"))
        theirs = replace(run, fault=fault, rule="zenopp", buffer=1, steps=5 * steps, eval_every=5 * steps)
        print(f"| `{fault}` | {ours:.1f} | {accuracy_of(theirs):.1f} |", flush=True)


def flood(task: str, data: str | None, steps: int = 300, seed: int = 0) -> None:
    """Prints the accuracy with 5 of 25 workers that reply 30 times as fast, beside the same run without faults."""
    run = zeno.Run(
        task=task, data=data, workers=25, steps=steps, eval_every=steps, asynchronous=True, delay="uniform(0, 10)"
    )
    run = replace(run, server_data=0.05, seed=seed)
    for rule, buffer in (("zeno_auto", 5), ("zeno_auto", 10), ("zenopp", 1)):
        number = steps * 5 // buffer if buffer < 5 else steps
        one = replace(run, rule=rule, buffer=buffer, steps=number, eval_every=number)
        found = [f"{rule}, buffer {buffer}, {number} updates: no faults {accuracy_of(one):.1f}"]
        for sends in ("inner_product", "sign_flip"):
            flooded = replace(one, fault=zeno.Flood(30.0, sends), faulty=5)
            found.append(f"{sends} {accuracy_of(flooded):.1f}")
        print(", ".join(found), flush=True)


def accuracy_of(run: zeno.Run) -> float:
    """At the end, in percent."""
    return 100 * (zeno.train(run)[-1].accuracy or 0.0)


def everything(say: Callable[[str, Numbers], None]) -> dict[str, Numbers]:
    """The part that `python -m benchmarks` runs."""
    found = {"one slow worker of eight": slow_worker()}
    for name, numbers in found.items():
        say(name, numbers)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["accuracy", "faults", "flood"])
    parser.add_argument("--task", default="mnist")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", action="append", default=[])
    options = parser.parse_args()
    data, steps = None if options.data is None else str(options.data), options.steps
    if options.what == "accuracy":
        print(accuracy(options.task, data, steps=steps or 60))
    elif options.what == "faults":
        faults(options.task, data, options.fault, steps or 300, options.seed)
    else:
        flood(options.task, data, steps or 300, options.seed)


if __name__ == "__main__":
    main()
