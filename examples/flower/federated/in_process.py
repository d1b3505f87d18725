"""The app in one process, without a network: to try it, and to compare strategies.

    cd examples/flower && python -m federated.in_process [--task mnist] [--malicious 6] [--fedavg]

Output (--task digits; ZenoStrategy):
    accuracy 93.3%
With --fedavg the run ends in round 1, as the names of arrays differ. README.md says how to run it with a network.
"""

import argparse
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.common.config import get_fused_config_from_dir
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from federated import client_app, server_app, server_fedavg

Config = dict[str, bool | float | int | str]
Client = Callable[[Message], Message]
CLIENTS, MALICIOUS = 10, ("label flip", "sign flip", "nan", "other keys")


class InProcess(Grid):
    """A grid whose nodes are functions in this process, by their ids."""

    def __init__(self, clients: Mapping[int, Client]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as in the process of a ServerApp
        self._clients = dict(clients)
        self._replies: dict[str, Message] = {}
        self._ids = itertools.count()

    def get_node_ids(self) -> Iterable[int]:
        return list(self._clients)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            ids.append(f"message-{next(self._ids)}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            self._replies[ids[-1]] = self._clients[message.metadata.dst_node_id](message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def set_run(self, run: object) -> None:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError


def run_config(**changed: str | float) -> Config:
    """The config of the app, with some of its values changed."""
    return get_fused_config_from_dir(Path(__file__).parent.parent, changed)


def client(number: int, clients: int, fault: str, config: Config) -> Client:
    """The ClientApp, as the node with this number runs it."""
    node_config: Config = {"partition-id": number, "num-partitions": clients, "fault": fault}
    context = Context(1, number, node_config, RecordDict(), config)
    return lambda message: client_app.app(message, context)


def faults(malicious: int, kinds: Iterable[str] = MALICIOUS) -> list[str]:
    """The faults of the clients: those with the lowest numbers are malicious, in turn in these ways."""
    return [*itertools.islice(itertools.cycle(kinds), malicious), *[""] * (CLIENTS - malicious)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--data", default="")
    parser.add_argument("--folder", default="")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--malicious", type=int, default=6)
    parser.add_argument("--fedavg", action="store_true")
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    changed = {"task": options.task, "data": options.data, "folder": options.folder}
    config = run_config(**changed, **{"num-server-rounds": options.rounds})
    clients = {1000 + k: client(k, CLIENTS, fault, config) for k, fault in enumerate(faults(options.malicious))}
    server = server_fedavg.app if options.fedavg else server_app.app
    server(InProcess(clients), Context(1, 1, {}, RecordDict(), config))


if __name__ == "__main__":
    main()
