"""Whatever a client sends is that client's fault only."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

import zeno
from support import hostile
from support.flower import LR, OWN, STEPS, FakeGrid, Node, client, linear, parameters_in, reply_with
from zeno.flower import ZenoStrategy
from zeno.flower.arrays import displacement
from zeno.records.record import Record

BAD = 7  # the id of the hostile node
GOOD: dict[int, Node] = {100 + seed: client(seed) for seed in range(3)}


def strategy_of(**options: Any) -> ZenoStrategy:
    return ZenoStrategy(linear(), F.cross_entropy, OWN, local_steps=STEPS, local_lr=LR, **options)


def one_round(strategy: ZenoStrategy, attack: hostile.Attack) -> Record:
    """The record of one more round, with the attack in place of training and of evaluation."""
    grid = FakeGrid({BAD: attack, **GOOD})
    arrays = ArrayRecord(strategy.server.model.state_dict())
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1, timeout=0)
    assert strategy.server.record is not None
    return strategy.server.record


def finite(strategy: ZenoStrategy) -> bool:
    return all(bool(part.isfinite().all()) for part in strategy.server.model.state_dict().values())


@pytest.mark.parametrize(("kind", "name"), hostile.ALL)
def test_the_reason_is_on_the_record_and_the_others_are_used(kind: zeno.ErrorKind, name: str) -> None:
    strategy = strategy_of(rule=zeno.Mean())
    record = one_round(strategy, hostile.KINDS[kind][name])
    assert strategy.server.names == ["7", "100", "101", "102"]
    assert list(record.errors) == [0]
    assert record.errors[0].kind == kind
    assert len(record.errors[0].text) < 300
    assert record.errors[0].text.isprintable()
    assert record.kept == [False, True, True, True]
    assert finite(strategy)
    assert hostile.unpickled == []


def test_with_the_mean_the_model_is_the_average_of_the_others() -> None:
    with_attack, without = strategy_of(rule=zeno.Mean()), strategy_of(rule=zeno.Mean())
    one_round(with_attack, hostile.MALFORMED["large"])
    arrays = ArrayRecord(without.server.model.state_dict())
    without.start(grid=FakeGrid(GOOD), initial_arrays=arrays, num_rounds=1, timeout=0)
    for one, other in zip(with_attack.server.model.parameters(), without.server.model.parameters(), strict=True):
        assert torch.equal(one, other)


@settings(max_examples=300, deadline=None)
@given(attack=hostile.ATTACKS)
def test_any_hostile_reply_leaves_the_good_clients_and_the_model(attack: hostile.Attack) -> None:
    strategy = strategy_of()
    record = one_round(strategy, attack)
    assert set(record.errors) <= {0}
    assert record.skipped is None
    assert record.weights is not None
    assert finite(strategy)
    assert float(strategy.server.problem.flat.abs().max()) < 10
    assert hostile.unpickled == []


@settings(max_examples=20, deadline=None)
@given(attacks=st.lists(hostile.ATTACKS, min_size=5, max_size=5))
def test_most_clients_are_hostile_for_several_rounds(attacks: list[hostile.Attack]) -> None:
    strategy = strategy_of()
    grid = FakeGrid({**dict(enumerate(attacks, start=1)), **GOOD})
    arrays = ArrayRecord(strategy.server.model.state_dict())
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=3, timeout=0)
    assert strategy.server.steps == 3
    assert not {"100", "101", "102"} & set(strategy.server.ledger.suspect_names)
    assert finite(strategy)


@pytest.mark.parametrize("claimed", [10**18, -1, 0, 1e300, float("nan"), [1, 2]])
def test_the_number_of_examples_that_a_client_claims_has_no_influence(claimed: Any) -> None:
    def claims(message: Message) -> Message:
        reply = reply_with(message, {name: part + 4.0 for name, part in parameters_in(message).items()})
        reply.content.metric_records["metrics"]["num-examples"] = claimed
        return reply

    def stays(message: Message) -> Message:
        return reply_with(message, parameters_in(message))

    strategy = strategy_of(rule=zeno.Mean())
    before = strategy.server.problem.flat.clone()
    arrays = ArrayRecord(strategy.server.model.state_dict())
    grid = FakeGrid({1: claims, 2: stays, 3: stays, 4: stays})
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1, timeout=0)
    torch.testing.assert_close(strategy.server.problem.flat, before + 1.0)


def evaluated(*numbers: dict[str, Any]) -> MetricRecord | None:
    """What clients that send these metrics are evaluated to."""

    def node(metrics: dict[str, Any]) -> Node:
        return lambda message: Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    strategy, grid = strategy_of(), FakeGrid({i: node(metrics) for i, metrics in enumerate(numbers)})
    arrays = ArrayRecord(strategy.server.model.state_dict())
    found = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1, timeout=0)
    return found.evaluate_metrics_clientapp.get(1)


def test_less_than_half_of_the_clients_cannot_move_the_evaluation_or_add_to_it() -> None:
    good = [{"loss": 1.0, "num-examples": 10}, {"loss": 2.0}, {"loss": 3.0, "num-examples": 5}]
    for bad in ({"loss": 1e300, "num-examples": 10**18, "mine": 1.0}, {"loss": float("nan")}, {"loss": [1.0]}, {}):
        found = evaluated(*good, bad, {"loss": float("inf")})
        assert found is not None
        assert list(found) == ["loss"]
        assert 1 <= float(found["loss"]) <= 3  # type: ignore[arg-type]


def test_an_evaluation_without_numbers_is_none() -> None:
    assert evaluated({}, {"loss": float("nan")}, {"num-examples": 4}) is None


@settings(max_examples=200, deadline=None)
@given(record=st.dictionaries(st.sampled_from(["weight", "bias"]), hostile.ARRAYS).map(ArrayRecord))
def test_arrays_are_read_or_refused_as_numpy_reads_them(record: ArrayRecord) -> None:
    model = linear()
    x = zeno.flatten(model.parameters())
    found = displacement(record, model, x)
    if not isinstance(found, zeno.ReplyError):  # then NumPy reads the same
        parts = [torch.from_numpy(record[name].numpy().astype("f8")) for name in ("weight", "bias")]
        torch.testing.assert_close(found, x - torch.cat([part.flatten() for part in parts]).to(x), equal_nan=True)


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_floating_point_numbers_of_every_size_and_order_are_read(dtype: str, order: Any) -> None:
    model = linear()
    x = zeno.flatten(model.parameters())
    state = {name: torch.arange(part.numel()).view(part.shape) for name, part in model.state_dict().items()}
    sent = {name: Array(part.numpy().astype(dtype, order=order)) for name, part in state.items()}
    for array in sent.values():
        array.dtype = array.dtype.replace(">f", "float").replace("float4", "float32").replace("float8", "float64")
    found = displacement(ArrayRecord(sent), model, x)
    assert not isinstance(found, zeno.ReplyError), found
    torch.testing.assert_close(found, x - torch.cat([part.flatten() for part in state.values()]))
