"""Asynchronous steps: which arrivals an update is made from, and what becomes of the others."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zeno
from support.tickets import FakeTickets
from zeno.problem.problem import Problem
from zeno.server.asynchronous import AsynchronousEngine, Asynchrony
from zeno.workers.reply import ErrorKind, ReplyError

D = 3
DATA = zeno.Dataset(torch.eye(D), torch.zeros(D), classes=None)
DIED = ReplyError(ErrorKind.DIED, "died")


def constant(worker: int, step: int, params: Tensor) -> Tensor:
    """Worker i sends i + 1 in every coordinate."""
    return torch.full((D,), worker + 1.0)


def engine(
    size: int, order: Sequence[int], sent: Callable[..., Any] = constant, rule: zeno.Rule | None = None, **how: Any
) -> AsynchronousEngine:
    model = nn.Linear(D, 1, bias=False)
    nn.init.zeros_(model.weight)
    problem = Problem(model, lambda outputs, targets: (outputs - 1).square().mean())
    params = nn.Parameter(problem.flat.clone())
    cluster = FakeTickets(size, order, sent)
    optimizer = torch.optim.SGD([params], lr=1.0)
    parts = (problem, rule or zeno.Mean(), cluster, DATA, torch.arange(D), optimizer)
    return AsynchronousEngine(*parts, asynchrony=Asynchrony(**how))


def tickets(server: AsynchronousEngine) -> list[tuple[int, int]]:
    assert isinstance(server.cluster, FakeTickets)
    return server.cluster.asked


def test_every_arrival_is_one_update_and_its_worker_gets_the_new_model() -> None:
    server = engine(3, [2, 0, 2])
    x = []
    for step in range(3):
        server.step(step)
        x.append(server.params[0].item())
    assert x == [-3.0, -4.0, -7.0]  # minus what workers 2, 0 and 2 send
    assert tickets(server) == [(0, 0), (1, 0), (2, 0), (2, 1), (0, 2)]


def test_a_worker_computes_on_the_version_that_it_was_given() -> None:
    seen = {}

    def sent(worker: int, step: int, params: Tensor) -> Tensor:
        seen[worker, step] = params.tolist()
        return constant(worker, step, params)

    server = engine(2, [0, 0, 1], sent)
    for step in range(3):
        server.step(step)
    assert seen == {(0, 0): [0.0] * D, (0, 1): [-1.0] * D, (1, 0): [0.0] * D}


def test_the_record_has_the_order_of_arrivals_and_who_did_not_arrive() -> None:
    server = engine(4, [3, 1, 1, 0], buffer=2)
    first, second = server.step(0).record(), server.step(1).record()
    assert first.arrivals == [[3, 0], [1, 0]]
    assert first.staleness == {3: 0, 1: 0}
    assert first.kept == [False, True, False, True]
    assert first.quarantined == [0, 2]
    assert first.dropped == []
    assert second.arrivals == [[1, 1], [0, 0]]
    assert second.staleness == {1: 0, 0: 1}
    assert server.params.tolist() == [-(4 + 2) / 2 - (2 + 1) / 2] * D


def test_a_worker_has_one_row_in_an_update_however_fast_it_replies() -> None:
    server = engine(3, [2, 2, 2, 2, 1], buffer=2)
    assert server.step(0).record().arrivals == [[2, 0], [1, 0]]
    assert tickets(server) == [(0, 0), (1, 0), (2, 0)]


def test_an_unusable_arrival_takes_no_place_in_the_buffer() -> None:
    wrong: dict[int, Any] = {0: torch.full((D,), torch.nan), 1: torch.ones(D + 1), 2: zeno.Reply(2, 7, torch.ones(D))}
    server = engine(5, [0, 1, 2, 3, 4], lambda i, step, x: wrong.get(i, torch.ones(D)), buffer=2)
    record = server.step(0).record()
    assert record.arrivals == [[i, 0] for i in range(5)]
    assert record.kept == [False] * 3 + [True] * 2
    kinds = {i: error.kind for i, error in record.errors.items()}
    assert kinds == {0: ErrorKind.NOT_FINITE, 1: ErrorKind.MALFORMED, 2: ErrorKind.MALFORMED}
    assert server.params.tolist() == [-1.0] * D


def test_the_server_does_not_count_on_a_worker_whose_last_ticket_brought_nothing() -> None:
    def sent(worker: int, step: int, params: Tensor) -> Any:
        return zeno.Reply(0, step, None, DIED, lost=True) if worker == 0 and step < 2 else torch.ones(D)

    server = engine(2, [0, 1, 1, 1, 0, 1, 0], sent, buffer=2)
    first, second, third, fourth = (server.step(step).record() for step in range(4))
    assert first.arrivals == [[0, 0], [1, 0]]
    assert first.lost == [0]
    assert second.arrivals == [[1, 1]]  # full without worker 0
    assert third.arrivals == [[1, 2]]
    assert fourth.arrivals == [[0, 1], [1, 3]]
    assert 0 in fourth.errors  # its ticket is of step 1


def test_a_step_without_usable_arrivals_is_skipped_and_the_model_stays() -> None:
    server = engine(2, [0, 1, 0, 1], lambda i, step, x: zeno.Reply(i, step, None, DIED, lost=True))
    record = server.step(0).record()
    assert record.skipped == "No usable gradient arrived, of 2 that were asked for."
    assert record.kept is None
    assert server.params.tolist() == [0.0] * D
    assert server.step(1).record().arrivals == [[0, 1], [1, 1]]


def test_a_step_ends_when_there_is_no_ticket_left() -> None:
    server = engine(3, [0, 1], buffer=3)
    record = server.step(0).record()
    assert record.arrivals == [[0, 0], [1, 0]]
    assert server.params.tolist() == [-1.5] * D


def test_arrivals_beyond_the_staleness_limit_are_discarded_with_a_reason() -> None:
    server = engine(2, [0, 0, 0, 1, 0], max_staleness=2)
    for step in range(3):
        server.step(step)
    record = server.step(3).record()
    assert record.arrivals == [[1, 0], [0, 3]]
    assert record.errors[1].kind is ErrorKind.STALE
    assert str(record.errors[1]) == "sent the gradient of a model that is 3 updates old, more than 2"
    assert server.params.tolist() == [-4.0] * D


def test_the_discount_shortens_stale_candidates() -> None:
    server = engine(2, [0, 0, 0, 1], discount=0.5)
    for step in range(4):
        server.step(step)
    assert server.params.tolist() == pytest.approx([-3 - 2 / 4**0.5] * D)  # worker 1 is 3 updates old


def test_workers_in_quarantine_get_no_ticket() -> None:
    server = engine(3, [0, 1, 2, 1], buffer=3)
    assert server.step(0, skip=[1]).record().arrivals == [[0, 0], [2, 0]]
    assert (1, 0) not in tickets(server)


def test_a_rule_remembers_workers_between_the_updates_that_they_are_in() -> None:
    """ByGARS has one reputation per worker: that of a worker that did not arrive stays."""
    server = engine(3, [0, 1, 2, 0], rule=zeno.ByGARS(rate=1.0, batch_size=3), buffer=2)
    server.step(0)
    before = server.core.state
    assert isinstance(before, Tensor)
    assert before[0] != 0
    assert before[1] != 0
    assert before[2] == 0
    server.step(1)
    after = server.core.state
    assert isinstance(after, Tensor)
    assert after[1] == before[1]
    assert after[2] != 0


def test_a_gradient_that_its_worker_changes_later_has_no_effect() -> None:
    shared = torch.ones(D)

    def sent(worker: int, step: int, params: Tensor) -> Tensor:
        if worker == 1:
            shared.fill_(1e6)
            return torch.ones(D)
        return shared

    server = engine(2, [0, 1], sent, buffer=2)
    server.step(0)
    assert server.params.tolist() == [-1.0] * D
