"""Quarantine and calls for new suspects in a user's own loop."""

from pathlib import Path
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
    server = server_of(zeno.Mean())
    for _ in range(10):
        server.step([*entries(server)[:3], None])
    assert server.ledger.suspects == [3]
    assert server.resting == []
    aggregate = server.step(entries(server))
    assert server.record is not None
    assert server.record.quarantined == []
    assert float(aggregate.weights[3]) == 0.25


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


@pytest.mark.parametrize("left_out", [True, False])
@pytest.mark.parametrize(
    ("rule", "workers"),
    [
        (zeno.Zeno(trim=2, batch_size=16), 4),
        (zeno.Krum(faulty=1), 5),
        (zeno.TrimmedMean(trim=2), 5),
        (zeno.chain(zeno.NNM(faulty=1), zeno.Median()), 4),
    ],
    ids=str,
)
def test_who_rests_still_counts_as_one_of_the_workers_of_the_rule(
    rule: zeno.Rule, workers: int, left_out: bool
) -> None:
    """With as many at rest as the rule tolerates; the caller may leave them out, or pass what they sent."""
    server, bad = server_of(rule, quarantine=True), range(rule.tolerates or 1)
    names = [f"gpu-{i}" for i in range(workers)]
    for _ in range(40):
        rests = server.resting if left_out else []
        server.step(
            {
                name: None if worker in bad else gradient(server, worker)
                for worker, name in enumerate(names)
                if name not in rests
            }
        )
    assert server.resting == [names[worker] for worker in bad]
    assert server.record is not None
    assert server.record.quarantined == list(bad)
    assert server.record.errors == {}


def test_who_rests_and_sends_nothing_has_no_error_even_if_the_rule_has_too_few() -> None:
    server = server_of(zeno.Median(), quarantine=True)
    for _ in range(10):
        server.step([*entries(server)[:3], None])
    before = server.ledger.rows[3].errors
    with pytest.raises(zeno.TooFewUsable):
        server.step([entries(server)[0], None, None, None])
    assert server.ledger.rows[3].errors == before


def test_a_machine_that_was_replaced_has_no_place_in_quarantine() -> None:
    """Of four machines one may rest. The first fails and is replaced; the second fails later."""
    server, later = server_of(zeno.Mean(), quarantine=True), set[str]()
    for step in range(400):
        first = ["gpu-0"] if step < 30 else ["gpu-4"]
        entries: dict[str, Tensor | None] = {
            name: gradient(server, worker) for worker, name in enumerate([*first, "gpu-1", "gpu-2", "gpu-3"])
        }
        if step < 30:
            entries["gpu-0"] = None
        if step >= 200:
            entries["gpu-1"] = None
        server.step(entries)
        if step == 29:
            assert server.resting == ["gpu-0"]
        later |= set(server.resting) if step >= 150 else set()
    assert server.ledger.suspect_names == ["gpu-0", "gpu-1"]
    assert later == {"gpu-1"}


def test_a_machine_that_left_is_no_excuse_for_others() -> None:
    """Three of eight send the opposite. One of them leaves just after the rule used it."""
    server = server_of(zeno.Zeno(trim=2, batch_size=16))
    names, left = [f"gpu-{i}" for i in range(8)], False
    for _ in range(150):
        if not left and server.steps > 10 and server.record is not None and (server.record.kept or [False])[0]:
            names.remove("gpu-0")
            left = True
        server.step(
            {
                name: gradient(server, int(name[-1])) * (-1 if name in ("gpu-0", "gpu-1", "gpu-2") else 1)
                for name in names
            }
        )
    assert left
    assert {"gpu-1", "gpu-2"} <= set(server.ledger.suspect_names)


def test_a_state_is_continued_with_the_failure_rate_of_the_new_server(tmp_path: Path) -> None:
    for folder in (None, tmp_path / "run"):
        before = server_of(zeno.Mean(), folder=folder)
        for step in range(60):
            before.step([*entries(before)[:3], None if step in (10, 30) else entries(before)[3]])
        before.close()
        after = server_of(zeno.Mean(), folder=folder, failure_rate=0.2)
        after.load_state_dict(before.state_dict())
        after.step([*entries(after)[:3], None])
        assert after.ledger.failure_rate == 0.2
        assert after.ledger.suspects == [] if folder else after.ledger.rows[3].errors == {"late": 3}
        after.close()


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1])
def test_a_failure_rate_is_a_share(rate: float) -> None:
    with pytest.raises(ValueError, match=r"failure_rate above 0 and below 1. Found"):
        server_of(failure_rate=rate)
