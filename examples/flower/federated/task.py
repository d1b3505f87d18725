"""The task of the app: its settings, the model, the samples of each party, and local training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypedDict

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, MetricRecord
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from zeno import LabelFlip
from zeno.problem.dataset import generator
from zeno.problem.splits import Dirichlet
from zeno.problem.tasks import Task, load_task

loss = F.cross_entropy


@dataclass(frozen=True)
class Settings:
    """The run config of the app; pyproject.toml has the defaults, and says what each is."""

    task: str
    data: str
    folder: str | None
    rounds: int
    min_nodes: int
    timeout: float
    samples: int
    alpha: float
    steps: int
    lr: float
    batch: int
    seed: int

    @classmethod
    def of(cls, config: Mapping[str, object]) -> "Settings":
        def number(name: str) -> float:
            return float(str(config[name]))

        return cls(
            task=str(config["task"]),
            data=str(config["data"]),
            folder=str(config["folder"]) or None,
            rounds=int(number("num-server-rounds")),
            min_nodes=int(number("min-nodes")),
            timeout=number("round-timeout"),
            samples=int(number("server-samples")),
            alpha=number("alpha"),
            steps=int(number("local-steps")),
            lr=number("learning-rate"),
            batch=int(number("batch-size")),
            seed=int(number("seed")),
        )


class Nodes(TypedDict):
    min_available_nodes: int
    fraction_evaluate: float


class Training(TypedDict):
    local_steps: int
    local_lr: float


def which_nodes(settings: Settings) -> Nodes:
    """For strategies: all nodes train, and none evaluates."""
    return {"min_available_nodes": settings.min_nodes, "fraction_evaluate": 0.0}


def local_training(settings: Settings) -> Training:
    """For strategies that train on the server, as clients do."""
    return {"local_steps": settings.steps, "local_lr": settings.lr}


@lru_cache(maxsize=1)
def load(name: str, data: str) -> Task:
    return load_task(name, Path(data).expanduser() if data else None)


def new_model(settings: Settings) -> nn.Module:
    torch.manual_seed(settings.seed)
    return load(settings.task, settings.data).model()


@lru_cache(maxsize=1)
def order(settings: Settings) -> Tensor:
    """All training samples, mixed: the first are the server's."""
    number = len(load(settings.task, settings.data).train)
    return torch.from_numpy(generator(settings.seed, "order").permutation(number))


def own_samples(settings: Settings) -> DataLoader[tuple[Tensor, ...]]:
    """The samples of the server, which no client has."""
    train = load(settings.task, settings.data).train
    batch = train.batch(order(settings)[: settings.samples])
    random = torch.Generator().manual_seed(settings.seed)
    return DataLoader(TensorDataset(*batch), batch_size=settings.batch, shuffle=True, generator=random)


@lru_cache(maxsize=1)
def split(clients: int, settings: Settings) -> Sequence[Tensor]:
    """The samples of each client, by position in the training set."""
    others = order(settings)[settings.samples :]
    targets = load(settings.task, settings.data).train.targets[others]
    return [others[part] for part in Dirichlet(settings.alpha)(targets, clients, generator(settings.seed, "split"))]


def train(model: nn.Module, samples: Tensor, settings: Settings, client: int, round_number: int, flip: bool) -> None:
    """Steps of SGD on a client's samples; with `flip`, on wrong labels."""
    data = load(settings.task, settings.data).train
    random = generator(settings.seed, "client", client, round_number)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr)
    model.train()
    for _ in range(settings.steps):
        batch = data.batch(samples[torch.from_numpy(random.integers(len(samples), size=settings.batch))])
        if flip:
            batch = LabelFlip().on_batch(batch, data.classes, random)
        optimizer.zero_grad()
        loss(model(batch.inputs), batch.targets).backward()
        optimizer.step()


def evaluation(settings: Settings) -> Callable[[int, ArrayRecord], MetricRecord]:
    """Evaluates arrays on the test set, for `evaluate_fn`."""
    model, test = new_model(settings), load(settings.task, settings.data).test
    inputs, targets = test.batch(torch.arange(len(test)))

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        model.eval()
        with torch.no_grad():
            outputs = model(inputs)
        right = (outputs.argmax(dim=1) == targets).double().mean()
        return MetricRecord({"loss": float(loss(outputs, targets)), "accuracy": float(right)})

    return evaluate
