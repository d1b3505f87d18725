"""Replies are received one by one, and each has the sender that was asked."""

import json
from collections.abc import Callable, Iterable

import httpx
import pytest
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict

import zeno
from support.flower import LR, OWN, STEPS, FakeGrid, Node, client, linear, parameters_in, reply_with
from zeno.flower import ZenoStrategy
from zeno.flower.grid import CheckedGrid

GOOD: dict[int, Node] = {100 + seed: client(seed) for seed in range(3)}
BAD = 7


class FailingGrid(FakeGrid):
    """Decodes replies when they are received, like Flower, and raises for those of one node."""

    def __init__(self, error: Exception) -> None:
        super().__init__({BAD: client(9), **GOOD})
        self._error = error
        self._of_bad: set[str] = set()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        ids = list(super().push_messages(messages))
        self._of_bad |= {name for name, one in zip(ids, messages, strict=True) if one.metadata.dst_node_id == BAD}
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        message_ids = list(message_ids)
        replies = super().pull_messages(message_ids)  # taken from the store, also if decoding one of them fails
        if self._of_bad & set(message_ids):
            raise self._error
        return replies


def strategy_of() -> ZenoStrategy:
    return ZenoStrategy(linear(), F.cross_entropy, OWN, rule=zeno.Mean(), local_steps=STEPS, local_lr=LR)


def start(strategy: ZenoStrategy, on: FakeGrid) -> None:
    strategy.start(on, ArrayRecord(strategy.server.model.state_dict()), num_rounds=1, timeout=0)


@pytest.mark.parametrize(
    "error", [KeyError("ArrayRecords"), json.JSONDecodeError("x\n\x1b", "", 0), RecursionError(), MemoryError()]
)
def test_a_reply_that_cannot_be_decoded_is_a_fault_of_its_node_only(error: Exception) -> None:
    strategy = strategy_of()
    start(strategy, FailingGrid(error))
    record = strategy.server.record
    assert record is not None
    assert list(record.errors) == [strategy.server.names.index(str(BAD))]
    found = next(iter(record.errors.values()))
    assert found.kind == zeno.ErrorKind.MALFORMED
    assert found.text.startswith("sent bytes that Flower cannot decode: " + type(error).__name__)
    assert found.text.isprintable()
    assert record.kept is not None
    assert sum(record.kept) == len(GOOD)


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), ConnectionResetError("reset")])
def test_without_a_connection_to_the_superlink_the_run_ends(error: Exception) -> None:
    with pytest.raises(type(error)):
        start(strategy_of(), FailingGrid(error))


def test_nobody_can_reply_in_the_name_of_another_node() -> None:
    def as_100(answer: Callable[[Message], Message]) -> Node:
        def reply(message: Message) -> Message:
            forged = answer(message)
            forged.metadata.__dict__["_src_node_id"] = 100
            return forged

        return reply

    for forged in (
        as_100(lambda message: reply_with(message, parameters_in(message))),
        as_100(lambda message: Message(Error(2, "it raised"), reply_to=message)),
    ):
        strategy = strategy_of()
        start(strategy, FakeGrid({BAD: forged, **GOOD}))
        assert strategy.server.record is not None
        assert [strategy.server.names[worker] for worker in strategy.server.record.errors] == [str(BAD)]


def test_a_round_waits_for_late_replies_but_not_beyond_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("zeno.flower.grid.time.monotonic", lambda: now[0])
    monkeypatch.setattr("zeno.flower.grid.time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))

    class SlowGrid(FakeGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            later = {"message-0": 0.0, "message-1": 4.0, "message-2": 20.0}
            return super().pull_messages([name for name in message_ids if now[0] >= later[name]])

    slow = SlowGrid({node: lambda message: Message(RecordDict(), reply_to=message) for node in (1, 2, 3)})
    content = RecordDict({"config": ConfigRecord()})
    messages = [Message(content, node, "train") for node in (1, 2, 3)]
    replies = list(CheckedGrid(slow).send_and_receive(messages, timeout=10.0))
    assert [reply.metadata.src_node_id for reply in replies] == [1, 2]
    assert 10 < now[0] < 13
