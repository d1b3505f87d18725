"""Rounds of Flower with ZenoStrategy, on nodes that are functions of this process."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Result
from torch import Tensor, nn
from typer.testing import CliRunner

import zeno
from support.flower import LR, OWN, STEPS, FakeGrid, Node, accuracy, client, linear, parameters_in, reply_with, trained
from zeno.cli.app import app
from zeno.flower import ZenoStrategy
from zeno.records.folder import read
from zeno.records.row import Row
from zeno.report.page.live import Live


def strategy_of(make: Callable[[], nn.Module] = linear, **options: Any) -> ZenoStrategy:
    options = {"local_steps": STEPS, "local_lr": LR, **options}
    return ZenoStrategy(make(), F.cross_entropy, OWN, **options)


def start(strategy: ZenoStrategy, grid: FakeGrid, rounds: int, **more: Any) -> Result:
    arrays = ArrayRecord(strategy.server.model.state_dict())
    return strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds, timeout=0, **more)


def moved(by: float) -> Node:
    """A client that adds a number to every parameter."""
    return lambda message: reply_with(message, {name: part + by for name, part in parameters_in(message).items()})


def good(number: int) -> dict[int, Node]:
    return {100 + seed: client(seed) for seed in range(number)}


def flat(state: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in state.values()])


def test_with_the_mean_a_round_is_the_plain_average_of_the_clients() -> None:
    strategy = strategy_of(rule=zeno.Mean(), fraction_evaluate=0.0)
    before = flat(strategy.server.model.state_dict()).clone()
    result = start(strategy, FakeGrid({1: moved(1.0), 2: moved(-4.0), 3: moved(6.0)}), 1)
    assert torch.allclose(flat(result.arrays.to_torch_state_dict()), before + 1.0)  # (1 - 4 + 6) / 3
    assert torch.allclose(flat(strategy.server.model.state_dict()), before + 1.0)


def test_with_gradient_momentum_the_round_is_that_of_fedavgm() -> None:
    model = linear()
    before = flat(model.state_dict()).clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    strategy = ZenoStrategy(model, F.cross_entropy, OWN, rule=zeno.Mean(), optimizer=optimizer)
    start(strategy, FakeGrid({1: moved(1.0), 2: moved(3.0)}), 2, evaluate_fn=None)
    assert torch.allclose(flat(model.state_dict()), before + 2.0 + (2.0 + 0.5 * 2.0))


def test_with_adam_the_first_round_is_that_of_fedadam() -> None:
    model = linear()
    before = flat(model.state_dict()).clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    strategy = ZenoStrategy(model, F.cross_entropy, OWN, rule=zeno.Mean(), optimizer=optimizer)
    start(strategy, FakeGrid({1: moved(1.0), 2: moved(3.0)}), 1)
    assert torch.allclose(flat(model.state_dict()), before + 0.1)  # the first step of Adam is lr * sign


def test_most_clients_have_flipped_labels_and_the_model_learns() -> None:
    named: list[Row] = []
    strategy = strategy_of(on_suspect=named.append)
    bad: dict[int, Node] = {200 + seed: client(seed, flip=True) for seed in range(6)}
    grid = FakeGrid({**good(4), **bad})
    result = start(strategy, grid, 30)
    assert accuracy(strategy.server.model) > 0.95
    assert set(strategy.server.ledger.suspect_names) == {str(node) for node in bad}
    assert {row.name for row in named} == {str(node) for node in bad}
    assert {row.reason for row in named} == {"harmful"}
    for number in range(1, 31):
        found: Any = result.train_metrics_clientapp[number]
        assert found["usable-replies"] == len(found["nodes"]) == len(found["weights"]) == len(found["scores"])
        assert abs(sum(found["weights"]) + found["own-share"] - 1) < 1e-3
        weights = dict(zip(found["nodes"], found["weights"], strict=True))
        assert sum(weights.get(node, 0.0) for node in bad) < 0.2


def test_nodes_in_quarantine_are_not_asked() -> None:
    strategy = strategy_of()
    grid = FakeGrid({**good(4), 7: moved(float("nan"))})
    start(strategy, grid, 12)
    asked = [7 in nodes for nodes in grid.asked]
    assert strategy.server.ledger.suspect_names == ["7"]
    assert asked[:3] == [True] * 3
    assert asked[-3:] == [False] * 3
    assert all(set(good(4)) <= set(nodes) for nodes in grid.asked)


def test_without_quarantine_all_are_asked() -> None:
    grid = FakeGrid({**good(4), 7: moved(float("nan"))})
    start(strategy_of(quarantine=False), grid, 12)
    assert all(7 in nodes for nodes in grid.asked)


def test_a_part_of_the_nodes_is_asked_and_what_is_known_follows_the_node() -> None:
    strategy = strategy_of(fraction_train=0.5, quarantine=False)
    grid = FakeGrid({**good(4), **{200 + seed: client(seed, flip=True) for seed in range(4)}})
    start(strategy, grid, 60)
    assert all(len(nodes) == 4 for nodes in grid.asked)
    assert len({tuple(nodes) for nodes in grid.asked}) > 10
    assert accuracy(strategy.server.model) > 0.95
    steps = {row.name: row.steps for row in strategy.server.ledger.rows}
    for name, row in zip(strategy.server.names, strategy.server.ledger.rows, strict=True):
        assert row.name == name
        assert steps[name] == 60 - row.quarantined == sum(int(name) in nodes for nodes in grid.asked)
    assert set(strategy.server.ledger.suspect_names) <= {"200", "201", "202", "203"}


def test_nodes_join_leave_and_come_back() -> None:
    strategy = strategy_of(rule=zeno.Mean(), fraction_evaluate=0.0)
    grid = FakeGrid(good(3))
    everyone = good(4)

    def change(number: int) -> None:
        if number == 2:
            del grid.nodes[101]
        if number == 4:
            grid.nodes.update(everyone)  # 101 comes back, 103 joins

    grid.on_round = change
    start(strategy, grid, 6)
    assert grid.asked == [[100, 101, 102]] * 2 + [[100, 102]] * 2 + [[100, 101, 102, 103]] * 2
    assert strategy.server.names == ["100", "101", "102", "103"]
    assert [row.steps for row in strategy.server.ledger.rows] == [6, 4, 6, 2]


def test_a_round_with_too_few_usable_replies_is_skipped() -> None:
    strategy = strategy_of(rule=zeno.Krum(faulty=1), quarantine=False)
    before = flat(strategy.server.model.state_dict()).clone()
    nothing: dict[int, Node] = {seed: lambda message: None for seed in range(4)}
    grid = FakeGrid({**nothing, **good(2)})
    result = start(strategy, grid, 2)
    assert torch.equal(flat(strategy.server.model.state_dict()), before)
    assert len(result.arrays) == 0
    assert dict(result.train_metrics_clientapp[1]) == {"usable-replies": 2}
    assert strategy.server.record is not None
    assert strategy.server.record.skipped is not None
    grid.nodes = good(6)
    start(strategy, grid, 1)
    assert not torch.equal(flat(strategy.server.model.state_dict()), before)


def test_the_statistics_of_batchnorm_are_the_servers() -> None:
    def norm() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

    def poisoned(message: Message) -> Message:
        state = dict(trained(message, 3, norm).state_dict())
        return reply_with(message, {**state, "1.running_mean": state["1.running_mean"] + 1e6})

    nodes: dict[int, Node] = {seed: client(seed, norm) for seed in range(3)}
    strategy = strategy_of(norm)
    result = start(strategy, FakeGrid({**nodes, 9: poisoned}), 15)
    assert accuracy(strategy.server.model) > 0.95
    sent = result.arrays.to_torch_state_dict()
    assert float(sent["1.running_mean"].abs().max()) < 10
    assert sent["1.num_batches_tracked"].dtype == torch.int64
    assert strategy.server.record is not None
    assert strategy.server.record.errors == {}


def test_the_initial_arrays_are_loaded() -> None:
    strategy = strategy_of(rule=zeno.Mean())
    zeros = {name: torch.zeros_like(part) for name, part in strategy.server.model.state_dict().items()}
    grid = FakeGrid({1: moved(1.0), 2: moved(2.0)})
    strategy.start(grid=grid, initial_arrays=ArrayRecord(zeros), num_rounds=1, timeout=0)
    assert torch.allclose(flat(strategy.server.model.state_dict()), torch.tensor(1.5))
    with pytest.raises(ValueError, match=r"needs initial_arrays with the names of its model.*'bias'"):
        strategy.start(grid=grid, initial_arrays=ArrayRecord({"weight": zeros["weight"]}), num_rounds=1, timeout=0)


def test_the_commands_read_the_folder_of_a_strategy(tmp_path: Path) -> None:
    seen: list[int] = []
    strategy = strategy_of(folder=tmp_path / "run", watchers=[lambda record, ledger: seen.append(record.step)])
    start(strategy, FakeGrid({**good(4), 7: moved(float("nan"))}), 12)
    assert seen == list(range(12))
    records = read(tmp_path / "run")
    assert len(records) == 12
    assert records[0].joined == ["7", "100", "101", "102", "103"]
    said = CliRunner().invoke(app, ["suspects", str(tmp_path / "run"), "--json"])
    assert said.exit_code == 0, said.output
    assert '"suspect_names": [\n      "7"\n    ]' in said.output
    assert CliRunner().invoke(app, ["report", str(tmp_path / "run")]).exit_code == 0
    assert '"103"' in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_the_live_page_names_the_nodes_during_a_run(tmp_path: Path) -> None:
    pages: list[str] = []

    def look(number: int, arrays: ArrayRecord) -> MetricRecord:
        if number == 2:
            pages.append(Live([tmp_path / "run"]).page())
        return MetricRecord({"accuracy": number / 10})

    start(strategy_of(folder=tmp_path / "run"), FakeGrid({**good(2), 7654321: moved(0.0)}), 3, evaluate_fn=look)
    assert '"7654321"' in pages[0]
    assert '"over":false' in pages[0]
    assert '"steps":2' in pages[0]


def test_what_the_server_evaluates_becomes_the_curves_of_the_folder(tmp_path: Path) -> None:
    strategy = strategy_of(folder=tmp_path / "run")
    found = [
        MetricRecord({"loss": 9.0, "accuracy": 0.1}),  # before the first round: of no step
        MetricRecord({"loss": 2.5, "accuracy": 0.25, "more": 3}),
        None,
        MetricRecord({"loss": 1.5, "accuracy": 75.0}),  # percent: not a curve from 0 to 1
        MetricRecord({"accuracy": 0.5, "loss": [1.0, 2.0]}),
    ]
    result = start(strategy, FakeGrid(good(3)), 4, evaluate_fn=lambda number, arrays: found[number])
    assert result.evaluate_metrics_serverapp == {n: one for n, one in enumerate(found) if one is not None}
    records = read(tmp_path / "run")
    assert [(record.train_loss, record.accuracy) for record in records] == [
        (2.5, 0.25),
        (None, None),
        (1.5, None),
        (None, 0.5),
    ]


def test_evaluation_is_the_median_of_the_clients() -> None:
    result = start(strategy_of(), FakeGrid({**good(5)}), 1)
    assert dict(result.evaluate_metrics_clientapp[1]) == {"loss": 2.0}


def test_no_node_is_asked_for_a_fraction_of_0() -> None:
    strategy = strategy_of(fraction_train=0.0, fraction_evaluate=0.0)
    result = start(strategy, FakeGrid(good(2)), 2)
    assert strategy.server.steps == 0
    assert not result.train_metrics_clientapp
    assert not result.evaluate_metrics_clientapp
    with pytest.raises(ValueError, match=r"needs fraction_train as a number from 0 to 1\. Found 1\.5\."):
        strategy_of(fraction_train=1.5)


def test_a_round_waits_for_enough_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = FakeGrid(good(1))
    monkeypatch.setattr("zeno.flower.sampling.time.sleep", lambda seconds: grid.nodes.update(good(3)))
    start(strategy_of(min_available_nodes=3), grid, 1)
    assert grid.asked == [[100, 101, 102]]


@pytest.mark.parametrize("rule", [zeno.FLTrust(), zeno.Zeno(trim=3), zeno.ServerAlone(), zeno.MoNNA(faulty=2)])
def test_other_rules_with_samples_of_the_server(rule: zeno.Rule) -> None:
    strategy = strategy_of(rule=rule)
    start(strategy, FakeGrid({**good(4), 7: client(0, flip=True), 8: moved(50.0)}), 20)
    assert accuracy(strategy.server.model) > 0.95


def test_the_final_metrics_are_those_of_evaluate_fn() -> None:
    strategy = strategy_of()

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model = linear()
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": accuracy(model)})

    result = start(strategy, FakeGrid(good(4)), 5, evaluate_fn=evaluate)
    assert result.evaluate_metrics_serverapp[5]["accuracy"] == accuracy(strategy.server.model)


@pytest.mark.parametrize(("local_lr", "warned"), [(LR, False), (LR / 10, True), (LR * 10, True)])
def test_a_server_that_trains_unlike_its_clients_is_warned_of(
    local_lr: float, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    start(strategy_of(local_lr=local_lr), FakeGrid(good(4)), 2)
    assert caplog.text.count("Set local_steps and local_lr to what clients do") == warned
