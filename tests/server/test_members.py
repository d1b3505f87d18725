"""Workers with names, which join and leave between the steps of a `zeno.Server`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zeno
from support.own_loops import INPUTS, TARGETS, loader, make, net, parameters, sent_by
from zeno.problem.nested import read as read_batch
from zeno.records.folder import read
from zeno.records.ledger import ledger_of
from zeno.server.members import Members
from zeno.server.samples import halves_of
from zeno.workers.reply import NO_REPLY

NAMES = ["gpu-00", "gpu-01", "gpu-02", "gpu-03", "gpu-04", "late-1", "late-2"]
EVERYONE = range(7)


def there(step: int) -> list[int]:
    """gpu-03 and gpu-04 leave for some steps, gpu-01 for good; two join, one of them while others are away."""
    gone = {1} if step >= 14 else set()
    gone |= {3, 4} if 6 <= step < 12 else set()
    gone |= {5} if step < 8 else set()
    gone |= {6} if step < 13 else set()
    return [worker for worker in EVERYONE if worker not in gone]


def whole_data() -> list[tuple[Tensor, Tensor]]:
    """As many of each half as a rule draws, so that every draw is of all of them."""
    halves = halves_of(read_batch((INPUTS, TARGETS), torch.device("cpu")))
    some = torch.cat([(halves == half).nonzero().flatten()[:100] for half in (0, 1)])
    return [(INPUTS[some], TARGETS[some])]


def server_of(rule: zeno.Rule, **more: Any) -> tuple[nn.Sequential, zeno.Server]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    return model, zeno.Server(model, F.cross_entropy, optimizer, whole_data(), rule, **more)


def weights_by_name(server: zeno.Server, aggregate: zeno.Aggregate) -> dict[str, float]:
    return dict(zip(server.names, aggregate.weights.tolist(), strict=True))


def run_by_name(
    rule: zeno.Rule, order: int = 1, steps: Iterable[int] = range(20)
) -> tuple[list[dict[str, float]], Tensor]:
    """The weights of each step by name; with order=-1 the mappings have the workers in the other order."""
    model, server = server_of(rule)
    found = []
    for step in steps:
        sent = sent_by(model, 7, 2, step)
        aggregate = server.step({NAMES[i]: sent[i] for i in there(step)[::order]})
        found.append(weights_by_name(server, aggregate))
    return found, parameters(model)


STATEFUL = [
    zeno.ZenoAuto(samples=200),
    zeno.BANT(batch_size=200),
    zeno.ByGARS(batch_size=200),
    zeno.chain(zeno.Clip(5.0), zeno.ZenoAuto(samples=200)),
    zeno.CenteredClipping(),
]


@pytest.mark.parametrize("rule", STATEFUL, ids=str)
def test_memory_follows_the_names_whatever_their_order(rule: zeno.Rule) -> None:
    weights, x = run_by_name(rule)
    others, y = run_by_name(rule, order=-1)
    for one, other in zip(weights, others, strict=True):
        assert one == pytest.approx(other, abs=1e-6)
    torch.testing.assert_close(x, y)


@pytest.mark.parametrize("rule", [STATEFUL[0], STATEFUL[2], STATEFUL[3]], ids=str)
def test_memory_is_that_of_a_run_where_those_that_are_not_there_send_nothing(
    rule: zeno.Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zeno.rules.zeno_auto.SMALLEST", 0.0)  # a share of an equal weight of all candidates
    weights, x = run_by_name(rule)
    model, server = server_of(rule)
    for step, of_names in enumerate(weights):
        sent: list[Tensor | None] = list(sent_by(model, 7, 2, step))
        aggregate = server.step([sent[i] if i in there(step) else None for i in EVERYONE])
        expected = dict(zip(NAMES, aggregate.weights.tolist(), strict=True))
        assert of_names == pytest.approx({name: expected[name] for name in of_names}, abs=1e-6)
    torch.testing.assert_close(x, parameters(model))


def test_a_worker_that_comes_back_finds_its_reputation() -> None:
    rule = zeno.ByGARS(rate=0.5, batch_size=200)
    model, server = server_of(rule)
    a, b, c = (torch.ones(len(parameters(model))) * size for size in (1.0, -1.0, 2.0))
    server.step({"a": a, "b": b})
    before: Any = server.core.state
    server.step({"c": c, "a": a})
    after: Any = server.core.state
    assert server.names == ["a", "b", "c"]
    assert after[1] == before[1], "b was not there"
    assert after[0] != before[0]
    server.step({"b": b})
    last: Any = server.core.state
    assert last[[0, 2]].tolist() == after[[0, 2]].tolist()
    assert last[1] != before[1]


def test_a_new_worker_starts_with_the_mean_trust() -> None:
    rows = Members([2, 0], ["a", "b", "c"], ["c"]).state_of(zeno.BANT(), torch.tensor([0.25, 0.75]).double())
    assert isinstance(rows, Tensor)
    assert rows.tolist() == [0.5, 0.25]


def test_workers_that_left_do_not_count_as_faulty() -> None:
    model, server = make(zeno.Median())
    sent = sent_by(model, 6, 0, 0)
    server.step(dict(zip(NAMES, sent, strict=False)))
    with pytest.raises(zeno.TooFewUsable, match=r"Found 2 of 6\. Worker gpu-01 sent no reply\. Worker gpu-02"):
        server.step({**dict.fromkeys(NAMES[:6]), "gpu-00": sent[0], "gpu-03": sent[3]})
    aggregate = server.step({"gpu-03": sent[3], "gpu-00": sent[0]})
    torch.testing.assert_close(aggregate.update, (sent[0] + sent[3]) / 2)
    assert aggregate.kept.tolist() == [True, False, False, True, False, False]
    assert server.record is not None
    assert (server.record.errors, server.record.quarantined) == ({}, [1, 2, 4, 5])
    assert server.record.dropped == []


def test_a_name_with_none_is_a_worker_that_sent_nothing() -> None:
    model, server = make()
    sent = sent_by(model, 5, 0, 0)
    server.step({**dict(zip(NAMES, sent, strict=False)), "late-1": None})
    assert server.record is not None
    assert server.record.errors == {5: NO_REPLY}
    assert server.record.quarantined == []
    assert server.record.joined == NAMES[:6]
    assert server.workers == 6


def test_a_loss_that_raises_is_the_error_of_the_worker_by_its_number() -> None:
    class Fragile(nn.CrossEntropyLoss):
        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            if bool((outputs.abs() > 1e4).any()):
                raise ValueError("too large")
            return super().forward(outputs, targets)

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    server = zeno.Server(model, Fragile(), optimizer, loader(), zeno.Zeno(trim=1, batch_size=32))
    sent = sent_by(model, 4, 0, 0)
    server.step(dict(zip("abcd", sent, strict=True)))
    server.step({"d": 1e9 * sent[3], "a": sent[0], "c": sent[2]})
    assert server.record is not None
    assert {server.names[i]: str(error.kind) for i, error in server.record.errors.items()} == {"d": "loss raised"}
    assert server.record.quarantined == [1]


@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        ({}, "needs at least one worker. Found no gradients"),
        ({7: None}, "name of a worker is a printable text of 1 to 100 characters.* Found 7"),
        ({"": None}, "Found ''"),
        ({"gpu\n07": None}, r"Found 'gpu\\n07'"),
        ({"\u202egpu": None}, "is a printable text"),
        ({" gpu": None}, "without spaces at its ends"),
        ({"g" * 101: None}, "of 1 to 100 characters"),
        ({"0.weight": None, "0.bias": None}, "a mapping by the names of parameters, such as '0.weight'"),
    ],
)
def test_mistakes_in_names_are_explained(gradients: Any, message: str) -> None:
    model, server = make()
    x = parameters(model)
    with pytest.raises(ValueError, match=message):
        server.step(gradients)
    assert (server.steps, server.names) == (0, [])
    assert torch.equal(parameters(model), x)


def test_lists_and_names_are_not_mixed() -> None:
    model, server = make()
    server.step(sent_by(model, 5, 0, 0))
    with pytest.raises(ValueError, match=r"same form at every step\. Found workers by name, which were in order"):
        server.step(dict(zip("abcde", sent_by(model, 5, 0, 0), strict=True)))
    model, server = make()
    server.step(dict(zip("abcde", sent_by(model, 5, 0, 0), strict=True)))
    with pytest.raises(ValueError, match=r"Found workers in order, which were by name"):
        server.step(sent_by(model, 5, 0, 0))


def test_a_step_that_raises_lets_nobody_join() -> None:
    model, server = make(zeno.Zeno(trim=3))
    sent = sent_by(model, 5, 0, 0)
    with pytest.raises(ValueError, match="Zeno needs more than trim candidates"):
        server.step({"x": sent[0]})
    server.step(dict(zip("abcde", sent, strict=True)))
    assert server.names == list("abcde")


def test_a_faulty_worker_is_named_although_others_come_and_go(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    folder = tmp_path / "run"
    with zeno.Server(model, F.cross_entropy, optimizer, loader(), zeno.ZenoAuto(samples=64), folder=folder) as server:
        for step in range(120):
            sent: list[Any] = sent_by(model, 7, 0, step)
            sent[4] = None if step % 2 else sent[4] * torch.nan
            server.step({NAMES[i]: sent[i] for i in EVERYONE if i in there(step) or i == 4})
    assert server.ledger.suspect_names == ["gpu-04"]
    assert str(server.ledger) == "1 of 7 workers is suspect: gpu-04."
    rows = server.ledger.rows
    assert [row.name for row in rows] == server.names == [*NAMES[:5], "late-1", "late-2"]
    assert [row.steps for row in rows] == [120, 14, 120, 114, 120, 112, 107], "at which they were asked"
    assert rows[4].errors == {"late": 60, "not finite": 60}
    assert "workers" not in (folder / "run.toml").read_text()
    assert ledger_of(read(folder), 0).rows == rows


def test_a_server_continues_with_names_memory_and_evidence(tmp_path: Path) -> None:
    rule = zeno.ZenoAuto(samples=200)

    def entries(model: nn.Module, step: int) -> dict[str, Tensor]:
        sent = sent_by(model, 7, 2, step)
        return {NAMES[i]: sent[i] for i in there(step)}

    for folder in (None, tmp_path / "run"):
        model, server = server_of(rule, folder=folder)
        for step in range(20):
            if step == 10:
                torch.save([model.state_dict(), server.state_dict()], tmp_path / "saved")
            server.step(entries(model, step))
        server.close()
        other, later = server_of(rule, folder=folder)
        saved = torch.load(tmp_path / "saved", weights_only=True)
        other.load_state_dict(saved[0])
        later.load_state_dict(saved[1])
        assert (later.names, later.workers, later.ledger.steps) == (NAMES[:6], 6, 10)
        for step in range(10, 20):
            later.step(entries(other, step))
        later.close()
        assert torch.equal(parameters(other), parameters(model))
        assert later.names == server.names
        assert later.ledger.rows == server.ledger.rows
        assert later.ledger.threshold == server.ledger.threshold
