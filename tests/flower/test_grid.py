"""Replies are received one by one, and each has the sender that was asked."""

import json
from collections.abc import Callable, Iterable
from types import SimpleNamespace

import httpx
import pytest
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.superlink.grid.http_grid import HttpGrid

import zeno
from federated.client_app import Undecodable
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


class Store:
    """What the SuperLink stores, in place of a connection to it: replies by the message that they answer."""

    def __init__(self, replies: dict[str, Message]) -> None:
        self._replies = replies
        objects = [get_all_nested_objects(reply) for reply in replies.values()]
        self._contents = {name: one.deflate() for found in objects for name, one in found.items()}

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802
        found = [self._replies.pop(name) for name in request.message_ids if name in self._replies]
        for reply in found:
            reply.metadata.__dict__["_message_id"] = reply.object_id
        return PullAppMessagesResponse(
            messages_list=[message_to_proto(remove_content_from_message(reply)) for reply in found],
            message_object_trees=[get_object_tree(reply) for reply in found],
        )

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:  # noqa: N802
        content = self._contents[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: object) -> None:  # noqa: N802
        pass


class StoredGrid(HttpGrid):
    """Flower's own grid, with a store in place of its connection, and messages that were sent before."""

    def __init__(self, store: Store) -> None:
        super().__init__(token="none")
        self.__dict__["_client"], self.__dict__["_run"] = store, SimpleNamespace(run_id=1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [message.metadata.message_id for message in messages]


def stored() -> tuple[list[Message], Store]:
    """Messages to the nodes 100, 7 and 101, and their replies: the second cannot be decoded, the third is forged."""
    FakeGrid({})  # this process has the identity of a ServerApp
    messages = [Message(RecordDict({"config": ConfigRecord()}), node, "train", group_id="1") for node in (100, 7, 101)]
    for message in messages:
        message.metadata.__dict__["_message_id"] = f"to-{message.metadata.dst_node_id}"
    broken = Message(RecordDict({"arrays": Undecodable(linear().state_dict())}), reply_to=messages[1])
    forged = reply_with(messages[2], linear().state_dict())
    forged.metadata.__dict__["_src_node_id"] = 100
    replies = [reply_with(messages[0], linear().state_dict()), broken, forged]
    return messages, Store({one.metadata.message_id: reply for one, reply in zip(messages, replies, strict=True)})


def test_in_flower_itself_one_reply_that_cannot_be_decoded_ends_the_round() -> None:
    messages, store = stored()
    with pytest.raises(json.JSONDecodeError):
        StoredGrid(store).send_and_receive(messages, timeout=5)


def test_with_the_grid_of_flower_each_reply_is_that_of_the_node_that_was_asked() -> None:
    messages, store = stored()
    good, broken, forged = CheckedGrid(StoredGrid(store)).send_and_receive(messages, timeout=0)
    assert good.metadata.src_node_id == 100
    assert good.has_content()
    assert broken.metadata.src_node_id == 7
    assert broken.error.reason is not None
    assert broken.error.reason.startswith("bytes that Flower cannot decode: JSONDecodeError")
    assert forged.metadata.src_node_id == 101
    assert forged.error.reason == "a reply that names another node as its sender"
