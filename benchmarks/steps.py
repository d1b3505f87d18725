"""The time of each part of a step on this machine, next to a simple implementation, in one process.

Every function returns a dict of numbers. Times are medians in milliseconds of runs that take turns, so that a
machine that is busy for a while slows both; a speedup is the median of the ratios of neighbouring runs.
"""

import copy
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zeno.problem import models, tasks
from zeno.problem.dataset import Batch, Dataset
from zeno.problem.problem import Problem
from zeno.workers.local import LocalCluster
from zeno.workers.worker import Worker

SHAPE, CLASSES, M, LR = (3, 32, 32), 10, 20, 0.1
Numbers = dict[str, float | bool]


def take_turns(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each way, run after run; the first run of each is not counted."""
    milliseconds: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if round_:
                milliseconds[name].append(1e3 * (time.perf_counter() - start))
    return milliseconds


def compared(milliseconds: dict[str, list[float]], slow: str, fast: str) -> Numbers:
    return {
        f"{slow}_ms": statistics.median(milliseconds[slow]),
        f"{fast}_ms": statistics.median(milliseconds[fast]),
        "speedup": statistics.median(a / b for a, b in zip(milliseconds[slow], milliseconds[fast], strict=True)),
    }


def samples(n: int, seed: int = 0) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    return Batch(torch.rand(n, *SHAPE, generator=rng), torch.randint(CLASSES, (n,), generator=rng))


def paper_problem(model: str = "cnn") -> Problem:
    torch.manual_seed(0)
    problem = Problem(models.MODELS[model](SHAPE, CLASSES))
    problem.refresh(problem.flat.clone(), samples(64, seed=1).inputs)
    return problem


def paper_candidates(problem: Problem, workers: int = M) -> Tensor:
    """Gradients of 8 samples each [m, d]."""
    x = problem.flat.clone()
    return torch.stack([problem.gradient(x, samples(8, seed=i), i) for i in range(workers)])


def plain(model: nn.Module) -> nn.Module:
    """The network as one writes it down: without the layer that lays pictures out with the channels last."""
    layers = [layer for layer in model.children() if not isinstance(layer, models.ChannelsLast)]
    return nn.Sequential(*copy.deepcopy(layers))


def naive_scores(model: nn.Module, x: Tensor, candidates: Tensor, batch: Batch) -> Tensor:
    """Sets every parameter from the candidate, one by one; then a forward."""

    @torch.no_grad()
    def loss(flat: Tensor) -> float:
        start = 0
        for parameter in model.parameters():
            parameter.copy_(flat[start : start + parameter.numel()].view_as(parameter))
            start += parameter.numel()
        return F.cross_entropy(model(batch.inputs).double(), batch.targets).item()

    model.eval()
    if len(batch.targets) >= 32:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.train()
    here = loss(x)
    return torch.tensor([here - loss(x - LR * u) for u in candidates], dtype=torch.float64)


def scores(problem: Problem, candidates: Tensor, n_r: int, rounds: int = 15) -> Numbers:
    """Problem.descent next to the naive loop."""
    x, batch = problem.flat.clone(), samples(n_r, seed=2)
    model = plain(problem.model)
    naive = naive_scores(copy.deepcopy(model), x, candidates, batch)
    ours = problem.descent(x, candidates, LR, batch)
    ms = take_turns(
        {
            "naive": lambda: naive_scores(model, x, candidates, batch),
            "descent": lambda: problem.descent(x, candidates, LR, batch),
        },
        rounds,
    )
    return {
        "n_r": n_r,
        **compared(ms, "naive", "descent"),
        "max_relative_difference": float(((ours - naive).abs() / naive.abs()).max()),
        "same_ranking": bool(torch.equal(ours.argsort(), naive.argsort())),
    }


def first_order(problem: Problem, n_r: int, rounds: int = 5) -> Numbers:
    """The server's gradient and m inner products, next to one worker's gradient of 100 samples."""
    x, candidates = problem.flat.clone(), paper_candidates(problem)
    batch, own = samples(100, seed=3), samples(n_r, seed=2)
    ms = take_turns(
        {
            "worker": lambda: problem.gradient(x, batch, 0),
            "own_gradient": lambda: problem.at(x, LR, own).gradient(),
            "first_order": lambda: candidates @ problem.at(x, LR, own).gradient(),
        },
        rounds,
    )
    medians = {f"{name}_ms": statistics.median(values) for name, values in ms.items()}
    return {"n_r": n_r, **medians, "share_of_a_gradient": medians["first_order_ms"] / medians["worker_ms"]}


def one_after_the_other(workers: list[Worker], x: Tensor, step: int) -> list[Tensor]:
    """A plain loop: all torch threads for each gradient."""
    found = []
    for worker in workers:
        batch, problem = worker.batch(step), worker.problem
        problem.load(x)
        problem.model.train()
        torch.manual_seed(step)
        loss = problem.loss_of(problem.model(batch.inputs), batch.targets)
        gradients = torch.autograd.grad(loss, problem.parameters)
        found.append(torch.cat([g.flatten() for g in gradients]))
    return found


def gradients(workers: list[Worker], rounds: int) -> Numbers:
    """LocalCluster next to a loop over the workers, and whether each gradient is the one its worker computes alone."""
    x, buffers = workers[0].problem.flat.clone(), {k: v.clone() for k, v in workers[0].problem.buffers.items()}
    cluster = LocalCluster(workers)
    for step in range(3):  # the first steps find out which way is fastest
        replies = {reply.worker: reply.gradient for reply in cluster.gradients(x, buffers, step)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = {worker.index: worker.gradient(x, buffers, step) for worker in workers[:4]}
    torch.set_num_threads(threads)
    ms = take_turns(
        {
            "one_after_the_other": lambda: one_after_the_other(workers, x, 0),
            "cluster": lambda: list(cluster.gradients(x, buffers, 0)),
        },
        rounds,
    )
    return {
        "workers": len(workers),
        **compared(ms, "one_after_the_other", "cluster"),
        "bits_as_alone": all(_equal(replies[i], gradient) for i, gradient in alone.items()),
    }


def _equal(a: Tensor | None, b: Tensor) -> bool:
    return a is not None and torch.equal(a, b)


def cnn_workers(problem: Problem, number: int, precision: str = "float32") -> list[Worker]:
    dataset = Dataset(*samples(1000, seed=4), classes=CLASSES)
    return [Worker(i, problem, dataset, torch.arange(1000), 100, 0, precision) for i in range(number)]


def digits_workers(number: int = M) -> list[Worker]:
    task = tasks.load_task("digits")
    problem = Problem(task.model(), task.loss)
    return [Worker(i, problem, task.train, torch.arange(len(task.train)), 100, 0) for i in range(number)]


def bf16(problem: Problem, rounds: int = 5) -> Numbers:
    """One worker's gradient in bfloat16 next to float32, and their relative difference."""
    x, batch = problem.flat.clone(), samples(100, seed=3)
    exact, rough = (problem.gradient(x, batch, 0, precision) for precision in ("float32", "bf16"))
    ms = take_turns(
        {
            "float32": lambda: problem.gradient(x, batch, 0),
            "bf16": lambda: problem.gradient(x, batch, 0, "bf16"),
        },
        rounds,
    )
    return {**compared(ms, "float32", "bf16"), "relative_error": float((exact - rough).norm() / exact.norm())}


def everything(on_numbers: Callable[[str, Numbers], None] = lambda name, numbers: None) -> dict[str, Numbers]:
    """All measurements; takes a few minutes."""
    found: dict[str, Numbers] = {}

    def note(name: str, numbers: Numbers) -> None:
        found[name] = numbers
        on_numbers(name, numbers)

    problem = paper_problem()
    candidates = paper_candidates(problem)
    for n_r, rounds in ((1, 15), (4, 11), (32, 3)):
        note(f"scores of 20 candidates, n_r={n_r}", scores(problem, candidates, n_r, rounds))
    for n_r in (1, 4):
        note(f"first-order scores, n_r={n_r}", first_order(problem, n_r))
    note("gradients of 20 workers, the paper's CNN", gradients(cnn_workers(problem, M), rounds=3))
    note("gradients of 20 workers, digits MLP", gradients(digits_workers(), rounds=30))
    note("a gradient in bf16, the paper's CNN", bf16(problem))
    return found
