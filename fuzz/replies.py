"""What workers pass to `zeno.Server` and `zeno.Arrivals`: gradients, and everything that is none."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import zeno
from fuzz.gradients import hostile
from zeno.rules.rule import TooFewUsable
from zeno.training.settings import make_rule

RULES = (
    "zeno_auto",
    "zeno(trim=3)",
    "zeno(trim=3, score='first_order')",
    "median",
    "krum(faulty=2)",
    "bucketing+geometric_median",
    "clip(10)+fltrust",
    "nnm(faulty=2)+trimmed_mean(trim=2)",
    "signguard",
)
M, STEPS, LONGEST = 12, 4, 1e4  # 2 hostile workers are a minority of the 6 buckets too


class Loud:
    """Raises at whatever it is asked."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __iter__(self) -> Iterator[float]:
        raise RuntimeError("no numbers")

    def __len__(self) -> int:
        raise RuntimeError("no length")


class Endless:
    def __iter__(self) -> Iterator[float]:
        while True:
            yield 1.0


class Subclass(Tensor):
    """Raises in every operation."""

    @classmethod
    def __torch_function__(cls, *arguments: object, **options: object) -> Tensor:
        raise RuntimeError("not today")


def _subclass(rng: np.random.Generator, good: Tensor) -> object:
    return good.clone().as_subclass(Subclass)


Odd = Callable[[np.random.Generator, Tensor], object]
ODD: Sequence[Odd] = (
    lambda rng, good: None,
    lambda rng, good: "gradient",
    lambda rng, good: {"gradient": good},
    lambda rng, good: good[:-1],
    lambda rng, good: good[None],
    lambda rng, good: good.new_zeros(0),
    lambda rng, good: good.long(),
    lambda rng, good: good.to(torch.complex64),
    lambda rng, good: good.double(),
    lambda rng, good: good.half(),
    lambda rng, good: good.to_sparse(),
    lambda rng, good: good.numpy(),
    lambda rng, good: good.numpy().astype(object),
    lambda rng, good: good.clone().requires_grad_(),
    lambda rng, good: good.to("meta"),
    lambda rng, good: torch.nested.nested_tensor([good, good[:1]]),
    lambda rng, good: [good],
    lambda rng, good: [None] * 4,
    lambda rng, good: [[[]]],
    lambda rng, good: good.tolist(),
    lambda rng, good: float(rng.choice([0.0, np.nan, 1e300])),
    lambda rng, good: 10**400,
    lambda rng, good: b"\xff" * 8,
    lambda rng, good: Loud(),
    lambda rng, good: Endless(),
    _subclass,
)


def replies(rng: np.random.Generator) -> None:
    """A server whose workers send anything: it takes a step or says why not, and the model stays finite and near."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    inputs = torch.from_numpy(rng.standard_normal((64, 3))).float()
    targets = (inputs.sum(dim=1, keepdim=True) > 0).float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rule = make_rule(str(rng.choice(RULES)))
    server = zeno.Server(model, _careful, optimizer, [(inputs, targets)], rule)
    for _ in range(STEPS):
        before = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        loss = _careful(model(inputs), targets)
        good = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
        try:
            server.step(_entries(rng, good))
        except TooFewUsable:
            continue
        after = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        assert bool(after.isfinite().all()), f"{rule} made the model not finite"
        moved = float((after - before).norm())
        assert moved <= LONGEST * float(good.norm()) + 100, f"{rule} moved the model by {moved:.3g}"


def _careful(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that raises where its input makes no sense."""
    chances = outputs.sigmoid()
    if not bool(outputs.abs().max() < 1e6):
        raise ValueError("outputs are too large")
    return nn.functional.binary_cross_entropy(chances, targets)


def _entries(rng: np.random.Generator, good: Tensor) -> Any:
    entries: list[object] = [good + 0.1 * float(good.norm()) * torch.from_numpy(rng.standard_normal(len(good))).float()
                             for _ in range(M)]  # fmt: skip
    for worker in rng.choice(M, size=int(rng.integers(0, 3)), replace=False):
        entries[worker] = (
            ODD[int(rng.integers(len(ODD)))](rng, good) if rng.random() < 0.7 else hostile(rng, good[None], 1)[0]
        )
    if rng.random() < 0.3:
        return Streamed(entries)
    return entries


class Streamed:
    """Entries that are read one at a time."""

    def __init__(self, entries: Sequence[object]) -> None:
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[object]:
        return iter(self.entries)
