"""ZenoStrategy: Flower's rounds, judged on samples of the server.

    strategy = ZenoStrategy(model, loss, data)  # in place of FedAvg()
    strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=20)

A round is one step of a `zeno.Server`, whose workers are the nodes by their ids. The candidate of a node is the
displacement of its local training,

    u_i = x - x_i

over the trained parameters. With SGD and lr=1, the default, a mean of candidates makes the step of FedAvg with equal
weights. Other optimizers over the same update are FedAvgM (SGD with momentum) and FedAdam (Adam).

Shapes: m nodes, d trainable parameters.
"""

from collections.abc import Callable, Iterable, Sequence
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log
from torch import nn
from torch.optim import Optimizer

from zeno.flower import metrics
from zeno.flower.grid import CheckedGrid
from zeno.flower.replies import Round, update_of
from zeno.flower.sampling import sample
from zeno.problem.local_training import LocalTraining
from zeno.problem.losses import Loss
from zeno.records.record import Record
from zeno.records.row import Row
from zeno.rules.rule import Rule, TooFewUsable
from zeno.server.recorder import Watcher
from zeno.server.server import Server
from zeno.workers.reply import ReplyError

ROUND = "server-round"  # where clients of Flower find the number of the round
FAILURE_RATE = 0.1  # of healthy nodes: phones and hospitals are offline more often than machines of one cluster
UNLIKE = 4.0  # times as far, or a quarter: from there on, clients and server train differently
HOW_FAR = (
    "Most clients should move about as far as the server, which has %s. Found them moving %.3g times as far. "
    "Set local_steps and local_lr to what clients do: good clients may have no weight, and become suspects."
)


class ZenoStrategy(Strategy):
    """A strategy of Flower that survives whatever clients send, and names those that harm.

    `model`, `loss`, `data`, `rule`, `folder`, `watchers`, `on_suspect` and `quarantine` are as in `zeno.Server`; the
    server itself is `strategy.server`, with the ledger. `data` are samples of the server that no client chooses.

    `local_steps` and `local_lr` state what clients do in a round: about so many steps of SGD with this learning rate.
    The server does the same on its own samples, because clients send the displacement of their training: ZenoAuto and
    FLTrust compare its length and direction with the server's own, and a gradient has another length.

    A node may fail in `failure_rate` of the rounds before it becomes suspect. Sampling is as in FedAvg, except that
    nodes in quarantine are not asked. What a client says about itself, such as `num-examples`, has no influence.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,  # loss(model, batch), or loss(outputs [n, ...], targets [n, ...])
        data: Iterable[Any] | None,
        *,
        rule: Rule | None = None,  # None: ZenoAuto()
        optimizer: Optimizer | None = None,  # None: SGD with lr=1
        local_steps: int = 10,
        local_lr: float = 0.01,
        fraction_train: float = 1.0,
        min_train_nodes: int = 2,
        min_available_nodes: int = 2,
        fraction_evaluate: float = 1.0,
        min_evaluate_nodes: int = 2,
        folder: str | Path | None = None,
        watchers: Sequence[Watcher] = (),
        on_suspect: Callable[[Row], object] | None = None,
        quarantine: bool = True,
        failure_rate: float = FAILURE_RATE,
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
    ) -> None:
        for name, fraction in (("fraction_train", fraction_train), ("fraction_evaluate", fraction_evaluate)):
            if not 0 <= fraction <= 1:
                raise ValueError(f"ZenoStrategy needs {name} as a number from 0 to 1. Found {fraction}.")
        self.fraction_train, self.min_train_nodes = fraction_train, min_train_nodes
        self.fraction_evaluate, self.min_evaluate_nodes = fraction_evaluate, min_evaluate_nodes
        self.min_available_nodes = min_available_nodes
        self.arrayrecord_key, self.configrecord_key = arrayrecord_key, configrecord_key
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0) if optimizer is None else optimizer
        self.server = Server(
            model,
            loss,
            optimizer,
            data,
            rule,
            folder=folder,
            watchers=watchers,
            on_suspect=on_suspect,
            quarantine=quarantine,
            failure_rate=failure_rate,
        )
        self.server.core.local_training = LocalTraining(local_steps, local_lr)
        self._arrays: ArrayRecord | None = None  # those of the model as it is now
        self._training = Round()
        self._evaluation = Round()
        self._warned = False  # of clients that train unlike the server

    def summary(self) -> None:
        log(INFO, "\t├── Rule: %s", self.server.rule)
        log(INFO, "\t├── Server optimizer: %s", type(self.server.optimizer).__name__)
        log(INFO, "\t├── Local training: %s", self.server.core.local_training)
        log(INFO, "\t└── Fractions: train %.2f, evaluate %.2f", self.fraction_train, self.fraction_evaluate)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages for a sample of the nodes that are not in quarantine."""
        self._load(arrays)
        asked = (self.fraction_train, self.min_train_nodes)
        messages = self._messages(server_round, arrays, config, grid, MessageType.TRAIN, *asked)
        self._training = _round(server_round, MessageType.TRAIN, messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The model after one robust step. Too few usable replies: no arrays, and the model stays as it is."""
        asked, self._training = self._training, Round()
        if not asked.nodes:
            return None, None
        contents, others = asked.contents(replies)
        if others:
            log(WARNING, "Round %d: ignored %d replies of nodes that were not asked.", server_round, others)
        server = self.server
        x = server.problem.flat
        try:
            server.step({str(node): update_of(content, server.model, x) for node, content in contents.items()})
        except TooFewUsable as failure:
            log(WARNING, "Round %d is skipped: %s", server_round, failure)
        else:
            self._arrays = ArrayRecord(server.model.state_dict())
        assert server.record is not None  # that of this round
        for worker, error in server.record.errors.items():
            log(INFO, "Round %d: node %s %s.", server_round, server.names[worker], error)
        self._compare_lengths(server.record)
        found = metrics.of_training(server.record, server.names)
        return (None if server.record.skipped else self._arrays), found

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The same for evaluation."""
        asked = (self.fraction_evaluate, self.min_evaluate_nodes)
        messages = self._messages(server_round, arrays, config, grid, MessageType.EVALUATE, *asked)
        self._evaluation = _round(server_round, MessageType.EVALUATE, messages)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The median of what clients measured: see `zeno.flower.metrics.of_evaluation`."""
        asked, self._evaluation = self._evaluation, Round()
        contents, _ = asked.contents(replies)
        return metrics.of_evaluation(found for found in contents.values() if not isinstance(found, ReplyError))

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Runs the rounds; then closes the folder and the watchers.

        If `evaluate_fn` returns a `loss`, or an `accuracy` from 0 to 1, they become the curves of the run folder.
        """

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            found = None if evaluate_fn is None else evaluate_fn(number, arrays)
            numbers = metrics.curves(found)
            if numbers and self.server.record is not None:
                self.server.log(**numbers)
            return found

        checked = CheckedGrid(grid)
        with self.server:
            return super().start(
                checked, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn and evaluate
            )

    def _compare_lengths(self, record: Record) -> None:
        """Warns, once, if most clients move much further than the server, or much less."""
        far = metrics.how_far(record)
        if not self._warned and far is not None and not 1 / UNLIKE < far < UNLIKE:
            self._warned = True
            log(WARNING, HOW_FAR, self.server.core.local_training, far)

    def _load(self, arrays: ArrayRecord) -> None:
        """Loads arrays of the caller into the model, unless they came from it."""
        if arrays is self._arrays:
            return
        model = self.server.model
        unlike = set(arrays) ^ set(model.state_dict())
        if unlike:
            raise ValueError(
                "ZenoStrategy needs initial_arrays with the names of its model. Found that only one of them has "
                f"{min(unlike)!r}. Pass ArrayRecord(model.state_dict())."
            )
        model.load_state_dict(arrays.to_torch_state_dict())
        self.server.load_state_dict(self.server.state_dict())  # the statistics of BatchNorm follow the parameters
        self._arrays = arrays

    def _messages(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        kind: str,
        fraction: float,
        least: int,
    ) -> list[Message]:
        if fraction == 0:
            return []
        nodes = sample(grid, fraction, least, self.min_available_nodes, self.server.resting)
        log(INFO, "Round %d, %s: asks %d nodes.", server_round, kind, len(nodes))
        config = ConfigRecord({**config, ROUND: server_round})
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [Message(content, node, kind, group_id=str(server_round)) for node in nodes]


def _round(number: int, kind: str, messages: Sequence[Message]) -> Round:
    return Round(number, kind, {message.metadata.dst_node_id: message.metadata for message in messages})
