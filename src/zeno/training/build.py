"""From settings to the parts of a run: the problem, the workers, the optimizer and the server's engine."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from zeno.faults import Faulty
from zeno.faults.injection import poisoned
from zeno.problem.dataset import generator, hold_out
from zeno.problem.problem import Problem
from zeno.problem.registry import build, describe, parse
from zeno.problem.tasks import Task, load_task, on_device, with_model
from zeno.records.folder import read
from zeno.server.asynchronous import AsynchronousEngine, Asynchrony
from zeno.server.engine import Engine
from zeno.training.execution import ExecutionSettings
from zeno.training.run import Run
from zeno.workers.cluster import Cluster
from zeno.workers.delays import DELAYS, Constant
from zeno.workers.local import LocalCluster
from zeno.workers.momentum import MomentumCluster
from zeno.workers.replay import Arrival, ReplayedCluster
from zeno.workers.simulation import SimulatedCluster
from zeno.workers.worker import Worker


def _public(module: ModuleType, base: type) -> dict[str, Any]:
    """The subclasses of `base` in a module of torch, by name in lower case."""
    kinds = {name: kind for name, kind in vars(module).items() if isinstance(kind, type) and not name.startswith("_")}
    return {name.lower(): kind for name, kind in kinds.items() if issubclass(kind, base) and kind is not base}


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = _public(torch.optim, Optimizer)
SCHEDULES: dict[str, Callable[..., LRScheduler]] = _public(lr_scheduler, LRScheduler)


def make_task(run: Run) -> Task:
    """The task of a run, with the model that the run names."""
    task = run.task if isinstance(run.task, Task) else load_task(run.task, Path(run.data) if run.data else None)
    return with_model(task, run.model) if run.model else task


def make_problem(run: Run, device: torch.device) -> tuple[Task, Problem]:
    """The task of a run, and its model with the initial parameters."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):  # tasks and models draw numbers
        torch.manual_seed(int(generator(run.seed, "task").integers(2**63)))
        task = on_device(make_task(run), device)
        torch.manual_seed(int(generator(run.seed, "initialisation").integers(2**63)))
        return task, Problem(task.model(), task.loss)


def make_engine(run: Run, task: Task, problem: Problem, execution: ExecutionSettings, stack: ExitStack) -> Engine:
    """The server of a run with its cluster; both are closed with the stack."""
    server_samples, worker_samples = hold_out(len(task.train), run.server_data, generator(run.seed, "hold out"))
    cluster = stack.enter_context(make_cluster(run, task, problem, worker_samples, execution))
    scorer = None
    if execution.scorers:
        from zeno.workers.ray import RayScorers

        scorer = stack.enter_context(closing(RayScorers(problem, execution.scorers)))
    optimizer, schedule = make_optimizer(run, nn.Parameter(problem.flat.clone()))  # [d]
    parts = (problem, run.rule, cluster, task.train, server_samples, optimizer, schedule, run.seed, scorer)
    asynchrony = Asynchrony(run.buffer, run.max_staleness, run.staleness_discount)
    engine = AsynchronousEngine(*parts, asynchrony=asynchrony) if run.asynchronous else Engine(*parts)
    stack.enter_context(closing(engine))
    if isinstance(cluster, Faulty):
        cluster.trial = engine.trial  # some faults know the rule
    return engine


def make_cluster(
    run: Run, task: Task, problem: Problem, samples: Tensor, execution: ExecutionSettings = ExecutionSettings()
) -> Cluster:
    """The workers of a run, including the faulty ones. They share these samples of the training set."""
    shards = run.split(task.train.targets[samples].cpu(), run.workers, generator(run.seed, "split"))
    if min(len(shard) for shard in shards) == 0:
        raise ValueError(
            f"{run.split} leaves a worker without samples: there are {len(samples)} for {run.workers} workers. "
            "Use fewer workers, or the split iid."
        )
    lrs = learning_rates(run) if run.local_steps > 1 else ()
    workers = [
        Worker(i, problem, task.train, samples[shard], run.batch_size, run.seed, run.precision, run.local_steps, lrs)
        for i, shard in enumerate(shards)
    ]
    workers = poisoned(workers, run.faulty_workers()) if run.faulty else workers
    cluster: Cluster
    if execution.cluster == "ray":
        cluster = _ray_cluster(run, workers, execution)
    elif execution.replay is not None:
        cluster = ReplayedCluster(workers, arrivals_in(Path(execution.replay), run))
    elif run.asynchronous:
        cluster = SimulatedCluster(workers, delays(run))
    else:
        cluster = LocalCluster(workers)
    cluster = MomentumCluster(cluster, run.worker_momentum) if run.worker_momentum else cluster
    return Faulty(cluster, run.faulty_workers(), run.seed) if run.faulty else cluster


def delays(run: Run) -> Callable[[int, int], float]:
    """The simulated time of a reply, as a function of the worker and the step at which it is asked."""
    faults = run.faulty_workers()

    def delay(worker: int, step: int) -> float:
        found = run.delay(worker, run.workers, generator(run.seed, "delay", worker, step))
        fault = faults(step).get(worker)
        return found if fault is None else fault.on_delay(found)

    return delay


def check_delay(run: Run, execution: ExecutionSettings) -> None:
    """Raises ValueError if the delay cannot be that of this run."""
    if execution.cluster == "ray" and run.delay != Constant():
        found = describe(run.delay, DELAYS)
        raise ValueError(f"A Ray cluster has real delays. Found delay={found!r}. Leave it out, or use cluster local.")
    if run.asynchronous:
        delays(run)(0, 0)


def arrivals_in(folder: Path, run: Run) -> list[list[Arrival]]:
    """The arrivals of each step of the asynchronous run in a folder, as many as this run has steps."""
    records = read(folder)
    missing = not records or any(record.arrivals is None for record in records)
    if missing or not run.asynchronous or run.steps > len(records):
        found = f"{len(records)} records in {folder}{', not all of them with arrivals' if missing else ''}"
        raise ValueError(
            f"A replay of {run.steps} steps needs the records of as many asynchronous ones. Found {found}, and "
            f"asynchronous={run.asynchronous}. Name the folder of an asynchronous run, and set steps to what it has."
        )
    return [
        [(i, version, record.errors[i] if i in record.lost else None) for i, version in record.arrivals or ()]
        for record in records[: run.steps]
    ]


def _ray_cluster(run: Run, workers: list[Worker], execution: ExecutionSettings) -> Cluster:
    from zeno.workers.ray import AsynchronousRayCluster, RayCluster  # Ray is an extra

    check_delay(run, execution)
    problem = workers[0].problem
    if problem.flat.dtype != torch.float32:
        raise ValueError(f"A Ray cluster sends float32 only. Found parameters of {problem.flat.dtype}.")
    for name, buffer in problem.buffers.items():
        try:
            buffer.cpu().numpy()
        except TypeError as error:
            raise ValueError(f"A Ray cluster cannot send the buffer {name} of the model: {error}.") from None
    kind = AsynchronousRayCluster if run.asynchronous else RayCluster
    return kind(
        workers,
        workers_per_actor=execution.workers_per_actor,
        deadline=execution.deadline,
        patience=execution.patience,
        address=execution.address,
        cpus_per_actor=execution.cpus_per_actor,
    )


def make_optimizer(run: Run, params: nn.Parameter) -> tuple[Optimizer, LRScheduler | None]:
    """The optimizer over the flat vector [d], and the schedule of its learning rate: torch's, by name."""
    for text in filter(None, (run.optimizer, run.schedule)):
        _, args, keywords = parse(text)
        if args:
            raise ValueError(f"Parameters of optimizers and schedules need their names. Found {text!r}.")
        if "lr" in keywords:
            raise ValueError(f"The learning rate is the setting lr. Found {text!r}. Set lr instead.")
    optimizer = build("optimizer", run.optimizer, OPTIMIZERS, overrides={"params": [params], "lr": run.lr})
    if run.schedule is None:
        return optimizer, None
    return optimizer, build("schedule", run.schedule, SCHEDULES, overrides={"optimizer": optimizer})


def learning_rates(run: Run) -> tuple[float, ...]:
    """The learning rate of every step: a schedule depends on the number of the step only."""
    params = nn.Parameter(torch.zeros(1))
    params.grad = torch.zeros(1)
    optimizer, schedule = make_optimizer(run, params)
    rates = []
    for _ in range(run.steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return tuple(rates)
