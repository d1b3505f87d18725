"""Parts of a small loop, for the tests of `zeno.Server`."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import zeno

SEED = torch.Generator().manual_seed(0)
INPUTS = torch.randn(400, 6, generator=SEED)
TARGETS = (INPUTS[:, 0] > INPUTS[:, 1]).long()


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def layer(model: nn.Sequential, number: int) -> nn.Linear:
    found = model[number]
    assert isinstance(found, nn.Linear)
    return found


def loader(batch_size: int = 25) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=batch_size)


def gradients_of(model: nn.Module, rows: Tensor, flipped: bool = False) -> list[Tensor]:
    loss = F.cross_entropy(model(INPUTS[rows]), 1 - TARGETS[rows] if flipped else TARGETS[rows])
    return list(torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad]))


def sent_by(model: nn.Module, workers: int, faulty: int, step: int) -> list[Tensor]:
    """What workers send, the first of them with flipped labels: each a vector [d]."""
    rng = torch.Generator().manual_seed(step)
    batches = [torch.randint(400, (20,), generator=rng) for _ in range(workers)]
    return [zeno.flatten(gradients_of(model, rows, i < faulty)) for i, rows in enumerate(batches)]


def make(
    rule: zeno.Rule = zeno.Zeno(trim=3, batch_size=32), optimizer: str = "SGD", **settings: Any
) -> tuple[nn.Sequential, zeno.Server]:
    model = net()
    kind: Callable[..., torch.optim.Optimizer] = getattr(torch.optim, optimizer)
    return model, zeno.Server(
        model, F.cross_entropy, kind(model.parameters(), **{"lr": 0.3, **settings}), loader(), rule
    )


def parameters(model: nn.Module) -> Tensor:
    return zeno.flatten(model.parameters()).clone()
