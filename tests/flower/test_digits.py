"""Clients that learn handwritten digits, half of them with flipped labels, and a server with few samples."""

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Message

import zeno
from support.flower import FakeGrid, Node, parameters_in, reply_with
from zeno.flower import ZenoStrategy
from zeno.problem.tasks import TASKS

TASK = TASKS["digits"](None)
STEPS, LR, BATCH = 10, 0.1, 32
OWN = 100  # samples of the server


def client(seed: int, flip: bool = False) -> Node:
    """Trains on samples that are not the server's."""
    random, model = torch.Generator().manual_seed(seed), TASK.model()

    def answer(message: Message) -> Message:
        model.load_state_dict(parameters_in(message))
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        for _ in range(STEPS):
            batch = TASK.train.batch(torch.randint(OWN, len(TASK.train), (BATCH,), generator=random))
            optimizer.zero_grad()
            F.cross_entropy(model(batch.inputs), 9 - batch.targets if flip else batch.targets).backward()
            optimizer.step()
        return reply_with(message, model.state_dict())

    return answer


def trained(nodes: dict[int, Node], rule: zeno.Rule) -> tuple[float, ZenoStrategy]:
    """The accuracy on the test set after 30 rounds."""
    torch.manual_seed(0)
    model, own = TASK.model(), [tuple(TASK.train.batch(torch.arange(OWN)))]
    strategy = ZenoStrategy(
        model, F.cross_entropy, own, rule=rule, local_steps=STEPS, local_lr=LR, fraction_evaluate=0.0
    )
    strategy.start(FakeGrid(nodes), ArrayRecord(model.state_dict()), num_rounds=30)
    test = TASK.test.batch(torch.arange(len(TASK.test)))
    with torch.no_grad():
        return float((model(test.inputs).argmax(dim=1) == test.targets).double().mean()), strategy


def test_half_of_the_clients_flip_labels_and_the_good_ones_make_the_model() -> None:
    good = {seed: client(seed) for seed in range(4)}
    bad = {100 + seed: client(100 + seed, flip=True) for seed in range(4)}
    reached, strategy = trained({**good, **bad}, zeno.ZenoAuto())
    alone, _ = trained(good, zeno.Mean())
    server, _ = trained(good, zeno.ServerAlone())
    assert reached > alone - 0.02, "360 pictures: a point is chance"
    assert reached > server + 0.02
    assert strategy.server.record is not None
    assert strategy.server.record.weights is not None
    weights = dict(zip(strategy.server.names, strategy.server.record.weights, strict=True))
    assert sum(weights[str(seed)] or 0.0 for seed in good) > 0.75
