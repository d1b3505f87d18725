"""Quarantine and calls for new suspects in a user's own loop."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zeno
from zeno.records.ledger import REST
from zeno.records.row import Row

INPUTS = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] + INPUTS[:, 1] > 0).long()


def server_of(rule: zeno.Rule | None = None, **more: Any) -> zeno.Server:
    torch.manual_seed(0)
    model = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return zeno.Server(model, F.cross_entropy, optimizer, [(INPUTS, TARGETS)], rule, **more)


def gradient(server: zeno.Server, worker: int) -> Tensor:
    batch = torch.randint(len(INPUTS), (50,), generator=torch.Generator().manual_seed(1000 * server.steps + worker))
    server.model.zero_grad()
    F.cross_entropy(server.model(INPUTS[batch]), TARGETS[batch]).backward()
    return torch.cat([p.grad.flatten() for p in server.model.parameters() if p.grad is not None])


def entries(server: zeno.Server, workers: int = 4) -> list[Tensor]:
    """The last worker sends the opposite."""
    found = [gradient(server, worker) for worker in range(workers)]
    return [*found[:-1], -found[-1]]


def test_a_function_is_called_once_for_each_new_suspect() -> None:
    called: list[Row] = []
    server = server_of(on_suspect=called.append)
    for _ in range(60):
        server.step(entries(server))
    assert [(row.worker, row.verdict, row.reason) for row in called] == [(3, "suspect", "harmful")]
    assert called[0].since is not None
    assert called[0].since < 60


def test_a_function_that_raises_does_not_end_the_training(caplog: pytest.LogCaptureFixture) -> None:
    def unreachable(row: Row) -> None:
        raise ConnectionError("no route to the pager")

    server = server_of(on_suspect=unreachable)
    for _ in range(60):
        server.step(entries(server))
    assert server.ledger.suspects == [3]
    assert "on_suspect raised for the suspect 3" in caplog.text
    assert "no route to the pager" in caplog.text


def test_the_gradients_of_a_suspect_are_not_used_while_it_rests() -> None:
    server = server_of(quarantine=True)
    while not server.resting:
        server.step(entries(server))
        assert server.steps < 100
    assert server.resting == ["3"]
    for _ in range(REST):
        sent: list[Tensor | None] = [*entries(server)]
        sent[3] = None  # it need not send anything
        aggregate = server.step(sent)
        assert server.record is not None
        assert server.record.quarantined == [3]
        assert server.record.errors == {}
        assert aggregate.weights[3] == 0
    assert server.resting == [], "it is tried again"


def test_without_quarantine_everybody_is_used() -> None:
    server = server_of()
    for _ in range(60):
        server.step(entries(server))
    assert server.ledger.suspects == [3]
    assert server.resting == []


def test_a_resting_worker_is_asked_if_the_rule_has_too_few_without_it() -> None:
    server = server_of(zeno.Median(), quarantine=True)
    for _ in range(10):
        server.step([*entries(server)[:3], None])
    assert server.resting == ["3"], "it failed"
    sent = entries(server)
    server.step([sent[0], None, sent[2], sent[3]])  # without worker 3, only two of four would be left
    assert server.record is not None
    assert server.record.quarantined == []
    assert list(server.record.errors) == [1]


def test_workers_with_names_rest_too() -> None:
    server = server_of(quarantine=True)
    names = ["gpu-00", "gpu-01", "gpu-02", "gpu-03"]
    while not server.resting:
        server.step(dict(zip(names, entries(server), strict=True)))
        assert server.steps < 150
    assert server.resting == ["gpu-03"]
    server.step(dict(zip(names, entries(server), strict=True)))
    assert server.record is not None
    assert server.record.quarantined == [3]


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1])
def test_a_failure_rate_is_a_share(rate: float) -> None:
    with pytest.raises(ValueError, match=r"failure_rate above 0 and below 1. Found"):
        server_of(failure_rate=rate)
