"""The public API under a strict type checker, from a file of a user's."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

GOOD = '''
"""A file of a user's."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import assert_type

import zeno


@dataclass(frozen=True)
class Halved(zeno.Rule):
    samples: int = 8

    def __call__(self, candidates: Tensor, oracle: zeno.Oracle | None = None, state: object = None) -> zeno.Aggregate:
        found = zeno.Median()(candidates, oracle, state)
        return found._replace(update=found.update / 2)


@dataclass(frozen=True)
class Stuck(zeno.Fault):
    value: float = 1.0

    def on_gradients(self, scene: zeno.Scene) -> Tensor:
        return torch.full_like(scene.own, self.value)

    def on_batch(self, batch: zeno.Batch, classes: int | None, rng: np.random.Generator) -> zeno.Batch:
        return batch


def stream(rows: list[Tensor]) -> Iterator[Tensor]:
    yield from rows


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(model(batch["x"]), batch["y"])


def loop() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = DataLoader(TensorDataset(torch.randn(8, 3), torch.zeros(8, dtype=torch.int64)))
    rule: zeno.Rule = Halved()
    momentum = zeno.Momentum(0.9)
    with zeno.Server(model, F.cross_entropy, optimizer, data, rule, folder="runs/mine") as server:
        flat = zeno.flatten(model)
        assert_type(flat, Tensor)
        by_name = zeno.unflatten(momentum(flat), model)
        assert_type(by_name, dict[str, Tensor])
        assert_type(server.step([flat, None, by_name, list(by_name.values())]), zeno.Aggregate)
        server.step(torch.stack([flat, flat]))
        server.step([flat, flat])
        server.step(stream([flat, flat]))
        server.step([{name: p.grad for name, p in model.named_parameters()}])
        server.step([[p.grad for p in model.parameters()]])
        assert_type(server.ledger.suspects, list[int])
        assert_type(server.record, zeno.Record | None)
        server.load_state_dict(server.state_dict())
    zeno.Server(model, nn.MSELoss(), optimizer, [(torch.zeros(2, 3), torch.zeros(2, 2))])
    zeno.Server(model, loss, optimizer, [{"x": torch.zeros(2, 3), "y": torch.zeros(2, 2)}])
    assert_type(zeno.distributed.step(model, optimizer, server), zeno.Aggregate | None)


def runs() -> None:
    fault = Stuck(value=2.0, on=2) + zeno.Crash(on=1)
    run = zeno.Run(rule=zeno.chain(zeno.NNM(faulty=2), zeno.Krum(faulty=2)), fault=fault, faulty=3, local_steps=2)
    execution = zeno.ExecutionSettings(cluster="ray")
    records = zeno.train(run, execution=execution, on_record=lambda record: print(record.accuracy))
    assert_type(records, list[zeno.Record])
    assert_type(zeno.ledger_of(records, run.workers).suspects, list[int])
    assert_type(zeno.ZenoAuto(memory=0.8).tolerates, int | None)
    aggregate = zeno.Zeno(trim=1)(torch.zeros(3, 4), zeno.Problem(nn.Linear(3, 1)).at(torch.zeros(4), 0.1, batch()))
    assert_type(aggregate.scores, Tensor | None)


def batch() -> zeno.Batch:
    return zeno.Batch(torch.zeros(1, 3), torch.zeros(1, 1))
'''

WRONG = """
import torch
from torch import nn

import zeno

model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
zeno.Server(model, nn.MSELoss(), optimizer)  # no data
server = zeno.Server(model, nn.MSELoss(), optimizer, None, "zeno")  # text as a rule
server.step("hello")  # text as gradients
server.step([1, 2])  # numbers as gradients
zeno.flatten(3)
zeno.unflatten(model, model)
zeno.Run(steps="many")
zeno.distributed.step(optimizer, model)
zeno.Krumm(faulty=1)  # a misspelt name
"""


def check(folder: Path, text: str) -> str:
    """What mypy says of it, in a folder outside of ours, as strictly as of our own files, whose cache it shares."""
    (folder / "theirs.py").write_text(text.lstrip(), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache"), "--no-error-summary"]
    settings = ["--config-file", str(ROOT / "pyproject.toml")]
    return subprocess.run(
        [*command, *settings, "theirs.py"], cwd=folder, capture_output=True, text=True, check=False
    ).stdout


def test_a_users_file_passes(tmp_path: Path) -> None:
    assert check(tmp_path, GOOD) == ""


def test_wrong_use_is_found(tmp_path: Path) -> None:
    found = {int(line) for line in re.findall(r"theirs.py:(\d+): error", check(tmp_path, WRONG))}
    lines = WRONG.strip().splitlines()
    assert found == set(
        range(lines.index("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)") + 2, len(lines) + 1)
    )


def test_the_package_says_that_it_is_typed() -> None:
    import zeno

    assert (Path(zeno.__file__).parent / "py.typed").is_file()
