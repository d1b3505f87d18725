"""A grid of Flower without a network: its nodes are functions in this process."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor, nn

Replies = Message | list[Message] | None
Node = Callable[[Message], Replies]

INPUTS = torch.randn(600, 5, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] + INPUTS[:, 1] > 0).long()
OWN = [(INPUTS[:200], TARGETS[:200])]  # the server's samples
STEPS, LR = 5, 0.1  # of the clients


class FakeGrid(Grid):
    """Asks its nodes one after the other; `asked` has the ids of the nodes of each round of training."""

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as in the process of a ServerApp
        self.nodes = dict(nodes)
        self.asked: list[list[int]] = []
        self.on_round: Callable[[int], object] = lambda number: None
        self._ids = itertools.count()
        self._replies: dict[str, list[Message]] = {}

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        training = bool(messages) and messages[0].metadata.message_type == "train"
        if training:
            self.asked.append([message.metadata.dst_node_id for message in messages])
        for message in messages:
            name = f"message-{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = name
            replies = self.nodes[message.metadata.dst_node_id](message)
            self._replies[name] = replies if isinstance(replies, list) else [] if replies is None else [replies]
        if training:
            self.on_round(len(self.asked))
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [reply for name in message_ids for reply in self._replies.pop(name, [])]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def set_run(self, run: object) -> None:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 2)


def parameters_in(message: Message) -> dict[str, Tensor]:
    return dict(message.content.array_records["arrays"].to_torch_state_dict())


def reply_with(message: Message, state: Mapping[str, Tensor], **numbers: float) -> Message:
    arrays, metrics = ArrayRecord(dict(state)), MetricRecord({"num-examples": 100, **numbers})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def trained(message: Message, seed: int, make: Callable[[], nn.Module] = linear, flip: bool = False) -> nn.Module:
    """The model of a message after the local training of a client."""
    model = make()
    model.load_state_dict(parameters_in(message))
    model.train()
    round_number = int(message.content.config_records["config"]["server-round"])  # type: ignore[arg-type]
    draws = torch.Generator().manual_seed(1000 * round_number + seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(STEPS):
        rows = 200 + torch.randint(400, (32,), generator=draws)
        labels = 1 - TARGETS[rows] if flip else TARGETS[rows]
        optimizer.zero_grad()
        F.cross_entropy(model(INPUTS[rows]), labels).backward()
        optimizer.step()
    return model


def client(seed: int, make: Callable[[], nn.Module] = linear, flip: bool = False) -> Node:
    """A client that trains on its samples; with `flip` on the opposite labels. Evaluates by a loss of `seed`."""

    def reply(message: Message) -> Message:
        if message.metadata.message_type == "evaluate":
            content = RecordDict({"metrics": MetricRecord({"num-examples": 100, "loss": float(seed)})})
            return Message(content, reply_to=message)
        return reply_with(message, trained(message, seed, make, flip).state_dict())

    return reply


def accuracy(model: nn.Module) -> float:
    model.eval()
    with torch.no_grad():
        return float((model(INPUTS).argmax(dim=1) == TARGETS).double().mean())
