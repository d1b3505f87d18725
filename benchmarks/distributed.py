"""`zeno.distributed.step` next to DDP's all-reduce, in gloo processes on this machine, in one run.

The contenders take turns in the same processes, on the same gradients, which are computed before: the time is that
between `backward` and the next forward, on the server rank. Ratios are those of medians.
"""

import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from benchmarks.steps import Numbers
from zeno import distributed
from zeno.rules import Mean, Rule, Zeno
from zeno.server.distributed.gather import BUCKET_BYTES
from zeno.server.server import Server

RANKS = 4
SIZES = (10**6, 10**7)
MEMORY_SIZE = 10**8
SAMPLES = 32  # of the server, that candidates are scored on
FLOAT = 4  # bytes


def everything(tell: Callable[[str, Numbers], None]) -> dict[str, Numbers]:
    """All measurements; `tell` is called after each."""
    found: dict[str, Numbers] = {}
    for size in SIZES:
        found[f"beside all-reduce, d = {size:.0e}"] = in_processes(_times, size)
        tell(*list(found.items())[-1])
    for rule in (Zeno(trim=RANKS - 1, batch_size=4, rho=0.0), Mean()):
        found[f"memory of the server, d = {MEMORY_SIZE:.0e}, {type(rule).__name__.lower()}"] = in_processes(
            _memory, MEMORY_SIZE, rule
        )
        tell(*list(found.items())[-1])
    return found


def in_processes(do: Callable[..., Numbers], *arguments: Any) -> Numbers:
    """Returns the result of rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (folder, do, arguments), nprocs=RANKS)
        numbers: Numbers = torch.load(Path(folder) / "numbers", weights_only=True)
        return numbers


def _rank(rank: int, folder: str, do: Callable[..., Numbers], arguments: tuple[Any, ...]) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=RANKS)
    numbers = do(*arguments)
    if rank == 0:
        torch.save(numbers, Path(folder) / "numbers")
    dist.barrier()  # nobody leaves while another still reads
    dist.destroy_process_group()


def _model(size: int) -> nn.Sequential:
    """About so many parameters, in matrices of at most 1e6."""
    width = 1000
    return nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(max(1, size // width**2))])


def _step_of(model: nn.Module, rule: Rule, data: list[tuple[Tensor, Tensor]]) -> Callable[[], object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    server = Server(model, F.mse_loss, optimizer, data, rule) if dist.get_rank() == 0 else None
    return lambda: distributed.step(model, optimizer, server)


def _times(size: int, rounds: int = 15) -> Numbers:
    model = _model(size)
    inputs = torch.randn(SAMPLES, 1000)
    data = [(inputs, inputs)]
    gradients = [1e-3 * torch.randn_like(parameter) for parameter in model.parameters()]
    plain = torch.optim.SGD(model.parameters(), lr=1e-3)

    def all_reduce() -> None:
        """What DDP does after backward, in its buckets; it hides part of it behind backward."""
        parts = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        vector = torch.cat(parts)
        for bucket in vector.split(BUCKET_BYTES // FLOAT):
            dist.all_reduce(bucket)
        for part, mean in zip(parts, (vector / RANKS).split([len(part) for part in parts]), strict=True):
            part.copy_(mean)
        plain.step()

    contenders = {
        "all_reduce": all_reduce,
        "mean": _step_of(model, Mean(), data),
        "zeno": _step_of(model, Zeno(trim=2, batch_size=SAMPLES, rho=0.0), data),
    }
    milliseconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 2):
        for name, call in contenders.items():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient.clone()
            dist.barrier()
            start = time.perf_counter()
            call()
            dist.barrier()
            if turn > 1:
                milliseconds[name].append(1e3 * (time.perf_counter() - start))
    medians = {name: statistics.median(values) for name, values in milliseconds.items()}
    ratios = {f"{name}_ratio": medians[name] / medians["all_reduce"] for name in ("mean", "zeno")}
    return {"ranks": RANKS, "samples": SAMPLES, **{f"{name}_ms": value for name, value in medians.items()}, **ratios}


def _memory(size: int, rule: Rule) -> Numbers:
    """The peak memory that one step adds to the server's process, in vectors of parameters."""
    model = _model(size)
    inputs = torch.randn(4, 1000)
    call = _step_of(model, rule, [(inputs, inputs)])
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    dist.barrier()
    before, seconds = _resident(), time.perf_counter()
    call()
    seconds = time.perf_counter() - seconds
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"ranks": RANKS, "vectors": (most - before) / (FLOAT * size), "seconds": seconds}


def _resident() -> int:
    """Bytes that this process has in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
