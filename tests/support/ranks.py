"""One rank of four, as `torchrun` would start it: plays every scene of test_distributed.py in one process group.

python tests/ranks.py RANK FOLDER: ranks find each other by a file in the folder, and write what they saw there.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import zeno
from zeno.server.distributed.gather import BUCKET_BYTES, _Transport

RANKS = 4
XS = torch.randn(2000, 10, generator=torch.Generator().manual_seed(0))
YS = (XS[:, 0] > XS[:, 1]).long()


def net(seed: int = 0, norm: bool = False) -> nn.Sequential:
    torch.manual_seed(seed)
    middle = [nn.BatchNorm1d(16)] if norm else []
    return nn.Sequential(nn.Linear(10, 16), *middle, nn.ReLU(), nn.Linear(16, 2))


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    rows = torch.randint(2000, (50,), generator=torch.Generator().manual_seed(100 * step + rank))
    return XS[rows], YS[rows]


def backward(model: nn.Module, rank: int, step: int) -> None:
    model.zero_grad()
    inputs, targets = batch(rank, step)
    F.cross_entropy(model(inputs), targets).backward()


def nothing(model: nn.Module, rank: int, step: int) -> None:
    """This rank is good."""


def play(
    rank: int,
    rule: zeno.Rule,
    steps: int = 6,
    wrong: Callable[[nn.Module, int, int], None] = nothing,
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda ps: torch.optim.SGD(ps, lr=0.2, momentum=0.9),
    server_rank: int = 0,
    norm: bool = False,
    seed: Callable[[int], int] = lambda rank: 0,
    **settings: Any,
) -> dict[str, Any]:
    """Trains, and returns what this rank saw."""
    model = net(seed(rank), norm)
    step_of = optimizer(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(step_of, step_size=40)
    server = None
    if dist.get_rank() == server_rank:
        server = zeno.Server(model, F.cross_entropy, step_of, [(XS, YS)], rule)
    kept: list[list[bool] | None] = []
    weights: list[list[float]] = []
    raised: list[str | None] = []
    for step in range(steps):
        backward(model, rank, step)
        wrong(model, rank, step)
        try:
            aggregate = zeno.distributed.step(model, step_of, server, server_rank=server_rank, **settings)
            kept.append(None if aggregate is None else aggregate.kept.tolist())
            weights.append([] if aggregate is None else aggregate.weights.tolist())
            raised.append(None)
        except zeno.TooFewUsable as error:
            kept.append(None)
            raised.append(str(error))
        schedule.step()
    model.eval()
    return {
        "params": zeno.flatten(model.parameters()).tolist(),
        "statistics": [b.tolist() for b in model.buffers()][:2],
        "accuracy": float((model(XS).argmax(dim=1) == YS).float().mean()),
        "kept": kept,
        "weights": weights,
        "raised": raised,
        "suspects": None if server is None else server.ledger.suspects,
        "errors": None if server is None or server.record is None else server.record.errors,
        "state": len(step_of.state),
    }


def bad_card(model: nn.Module, rank: int, step: int) -> None:
    """Ranks 2 and 3 send numbers that are no gradients: NaN, infinities, bits, a huge step uphill."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        if rank == 2:
            parameter.grad.fill_([torch.nan, torch.inf, 1e38, -1e9][step % 4])
        if rank == 3:
            parameter.grad.mul_(-20)


def most_nan_at_step_1(model: nn.Module, rank: int, step: int) -> None:
    if step == 1 and rank > 0:
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, torch.nan)


def bits_flip_in_memory_at_step_2(model: nn.Module, rank: int, step: int) -> None:
    if step == 2 and rank == 1:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(100)


def with_momentum(rank: int) -> dict[str, Any]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    server = zeno.Server(model, F.cross_entropy, optimizer, None, zeno.Mean()) if rank == 0 else None
    momentum = zeno.Momentum(0.5)
    for step in range(3):
        backward(model, rank, step)
        zeno.distributed.step(model, optimizer, server, sent=momentum(zeno.flatten(model)), bucket_bytes=64)
    return {"params": zeno.flatten(model.parameters()).tolist()}


def among_some(rank: int) -> dict[str, Any] | None:
    """Ranks 1 to 3 alone; the second of these, which is rank 2, is the server."""
    group = dist.new_group([1, 2, 3])
    if rank == 0:
        return None
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    server = zeno.Server(model, F.cross_entropy, optimizer, None, zeno.Mean()) if rank == 2 else None
    for step in range(3):
        backward(model, rank, step)
        zeno.distributed.step(model, optimizer, server, server_rank=1, group=group)
    return {"params": zeno.flatten(model.parameters()).tolist()}


def too_short(rank: int) -> dict[str, Any]:
    """Rank 3 sends two numbers, where there should be many."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    server = zeno.Server(model, F.cross_entropy, optimizer, [(XS, YS)], zeno.Zeno(trim=1)) if rank == 0 else None
    for step in range(3):
        backward(model, rank, step)
        if rank == 3:
            line = _Transport(model, 0, None, BUCKET_BYTES)
            if step == 0:
                line.ranks.compare(line.description())
            line.send(torch.ones(2))
            assert not line.ranks.share_text("", 0)
            line.share_model(is_server=False)
        else:
            zeno.distributed.step(model, optimizer, server)
    record = None if server is None else server.record
    return {
        "params": zeno.flatten(model.parameters()).tolist(),
        "errors": None if record is None else record.errors,
        "kept": None if record is None else record.kept,
    }


def differing(rank: int, model: nn.Module, **settings: Any) -> dict[str, Any]:
    """One step with this model on each rank: what it raises."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    server = zeno.Server(model, F.cross_entropy, optimizer, [(XS, YS)], zeno.Mean()) if rank == 0 else None
    x = zeno.flatten(model.parameters())
    sent = torch.ones_like(x)
    raised = []
    for _ in range(2):
        try:
            zeno.distributed.step(model, optimizer, server, sent=sent, **settings)
            raised.append("")
        except ValueError as error:
            raised.append(str(error))
    return {"raised": raised, "unchanged": bool(torch.equal(zeno.flatten(model.parameters()), x))}


def without_statistics(model: nn.Sequential) -> nn.Sequential:
    model[1] = nn.BatchNorm1d(16, track_running_stats=False)
    return model


def frozen(model: nn.Sequential) -> nn.Sequential:
    model[0].requires_grad_(False)
    return model


def main(rank: int, folder: Path) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'ranks'}", rank=rank, world_size=RANKS)
    zeno_rule = zeno.Zeno(trim=2, batch_size=64)
    adam = lambda ps: torch.optim.Adam(ps, lr=0.02)  # noqa: E731
    seen = {
        "mean": play(rank, zeno.Mean()),
        "mean in tiny buckets": play(rank, zeno.Mean(), bucket_bytes=20),
        "the server is rank 2": play(rank, zeno.Mean(), server_rank=2),
        "zeno": play(rank, zeno_rule, 60, bad_card, adam),
        "auto": play(rank, zeno.ZenoAuto(), 60, bad_card, adam),
        "too many NaN": play(rank, zeno_rule, 4, most_nan_at_step_1),
        "bits flip in memory": play(rank, zeno.Mean(), 6, bits_flip_in_memory_at_step_2),
        "other beginnings": play(rank, zeno.Mean(), 2, seed=lambda rank: rank),
        "batch norm": play(rank, zeno_rule, 3, norm=True),
        "momentum": with_momentum(rank),
        "some": among_some(rank),
        "too short": too_short(rank),
        "one layer more": differing(rank, nn.Sequential(net(), nn.Linear(2, 2)) if rank == 2 else nn.Sequential(net())),
        "another type": differing(rank, net().double() if rank == 3 else net()),
        "another shape": differing(rank, nn.Linear(6, 4) if rank == 1 else nn.Linear(4, 6)),
        "another name": differing(rank, nn.Sequential(nn.Linear(3, 2)) if rank == 0 else nn.Linear(3, 2)),
        "a frozen layer": differing(rank, frozen(net()) if rank == 1 else net()),
        "no statistics": differing(rank, without_statistics(net(norm=True)) if rank == 2 else net(norm=True)),
        "other buckets": differing(rank, net(), bucket_bytes=40 if rank == 1 else 80),
        "afterwards": play(rank, zeno.Mean()),
    }
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    dist.barrier()  # nobody leaves while another still reads
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
    # Everything is written, and the group is gone. Under load, gloo's threads sometimes abort a process that ends by
    # itself ("terminate called without an active exception").
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
