"""A training step with `zeno.distributed.Guard` next to the same step with plain DDP, in gloo processes, in one run.

A step is forward, backward with its all-reduce, and the optimizer. The contenders take turns in the same processes.
Times are those of rank 0 between barriers, ratios those of medians. Bytes are those that the loopback device sent.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks import steps
from benchmarks.distributed import RANKS, in_processes
from benchmarks.steps import Numbers
from zeno.problem.models import MODELS
from zeno.server.distributed import Guard

BATCHES = (128, 32)  # samples of a rank
OWN = 64  # trusted samples
WIDTH = 1980  # of an MLP of 10 million parameters
NEVER = 10**9
LOOPBACK = Path("/sys/class/net/lo/statistics/tx_bytes")


def everything(tell: Callable[[str, Numbers], None]) -> dict[str, Numbers]:
    """All measurements; `tell` is called after each."""
    found: dict[str, Numbers] = {}
    for name in ("mlp of 1e7", "cnn"):
        for size in BATCHES:
            found[f"{name}, {size} samples a rank"] = in_processes(_times, name, size)
            tell(*list(found.items())[-1])
    return found


def _model(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "cnn":
        return MODELS["cnn"]((3, 32, 32), 10)
    width = WIDTH
    layers = [nn.Linear(3072, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def _contender(
    name: str, data: list[tuple[Tensor, Tensor]] | None, **settings: Any
) -> Callable[[Tensor, Tensor], None]:
    model = DistributedDataParallel(_model(name))
    if settings:
        Guard(model, F.cross_entropy, data, compare_every=0, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def _times(name: str, size: int) -> Numbers:
    rank = dist.get_rank()
    inputs, targets = steps.samples(size, seed=rank)
    own = steps.samples(4 * OWN, seed=9)
    data = [(own.inputs, own.targets)] if rank == 0 else None
    contenders = {
        "ddp": _contender(name, None),
        "exact": _contender(name, data, every=NEVER),
        "overlapped": _contender(name, data, every=NEVER, overlap=True),
        "watched": _contender(name, data, every=NEVER, act=False),
        "exact with own gradient": _contender(name, data, every=1),
    }
    milliseconds: dict[str, list[float]] = {contender: [] for contender in contenders}
    sent = dict.fromkeys(contenders, 0)
    rounds = 12 if name == "cnn" else 30
    for turn in range(rounds + 3):  # buckets are rebuilt after the first step
        order = list(contenders)
        for contender in order[turn % len(order) :] + order[: turn % len(order)]:  # nobody always follows the same
            dist.barrier()
            before, start = int(LOOPBACK.read_text()), time.perf_counter()
            contenders[contender](inputs, targets)
            dist.barrier()
            if turn > 2:
                milliseconds[contender].append(1e3 * (time.perf_counter() - start))
                sent[contender] += int(LOOPBACK.read_text()) - before
    medians = {contender: statistics.median(values) for contender, values in milliseconds.items()}
    others = [contender for contender in contenders if contender != "ddp"]
    return {
        "ranks": RANKS,
        "ddp_ms": medians["ddp"],
        **{f"{contender}_ratio": medians[contender] / medians["ddp"] for contender in others},
        **{f"{contender}_bytes": sent[contender] / sent["ddp"] for contender in others},
    }
