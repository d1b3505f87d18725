"""Faults of asynchronous runs: what one arrival becomes, and when it comes."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import zeno
from support.tickets import FakeTickets
from zeno.training.build import delays
from zeno.training.settings import make_fault
from zeno.workers.reply import ErrorKind

M, D = 4, 3


def values(worker: int, step: int, params: Tensor) -> Tensor:
    return torch.full((D,), 10.0 * worker + step)


def arrivals(fault: zeno.Fault, faulty: list[int], order: list[int]) -> list[zeno.Reply]:
    """The replies in this order; each worker is asked again at the next step."""
    cluster = zeno.Faulty(FakeTickets(M, order, values), lambda step: dict.fromkeys(faulty, fault), seed=0)
    cluster.trial = lambda candidates, step: candidates.nanmean(dim=0)
    found: list[zeno.Reply] = []
    for step in range(len(order)):
        for worker in sorted(cluster.idle(step)):
            cluster.ask(worker, torch.zeros(D), {}, step)
        reply = cluster.next_reply()
        assert reply is not None
        found.append(reply)
    return found


def numbers(replies: list[zeno.Reply]) -> list[float]:
    assert all(reply.gradient is not None and reply.gradient.unique().numel() == 1 for reply in replies)
    return [float(reply.gradient[0]) for reply in replies if reply.gradient is not None]


def test_a_fault_acts_on_the_arrivals_of_its_workers() -> None:
    replies = arrivals(zeno.SignFlip(2.0), [0, 1], [2, 1, 0, 1])
    assert [(reply.worker, reply.step) for reply in replies] == [(2, 0), (1, 0), (0, 0), (1, 2)]
    assert numbers(replies) == [20.0, -20.0, -0.0, -24.0]


def test_colluding_workers_see_the_last_gradients_of_the_others() -> None:
    # -eps times the mean of all that was computed correctly and has arrived by then, its own included.
    replies = arrivals(zeno.InnerProduct(eps=0.5), [0], [0, 2, 0, 3, 2, 0])
    expected = [0.0, 20.0, -0.5 * (1 + 20) / 2, 30.0, 22.0, -0.5 * (3 + 30 + 22) / 3]
    assert numbers(replies) == pytest.approx(expected)


def test_the_fault_of_an_arrival_is_that_of_the_step_at_which_it_was_asked() -> None:
    def schedule(step: int) -> dict[int, zeno.Fault]:
        return {1: zeno.Zero()} if step >= 1 else {}

    cluster = zeno.Faulty(FakeTickets(2, [0, 0, 1, 1], values), schedule, seed=0)
    sent = []
    for step in range(4):
        for worker in sorted(cluster.idle(step)):
            cluster.ask(worker, torch.zeros(D), {}, step)
        reply = cluster.next_reply()
        assert reply is not None
        sent.append(reply)
    assert numbers(sent) == [0.0, 1.0, 10.0, 0.0]  # worker 1: asked at steps 0 and 3


@pytest.mark.parametrize("name", zeno.FAULTS)
def test_every_fault_answers_each_ticket_once(name: str) -> None:
    order = [0, 1, 2, 3] * 3
    replies = arrivals(make_fault(name), [0, 1], order)
    assert [reply.worker for reply in replies] == order
    for reply in replies:
        if reply.worker > 1:
            assert torch.equal(reply.gradient, values(reply.worker, reply.step, torch.zeros(D)))  # type: ignore[arg-type]
        assert not reply.late


@pytest.mark.parametrize(("name", "kind"), [("hang", ErrorKind.LATE), ("crash", ErrorKind.DIED)])
def test_no_reply_is_an_error_of_that_worker(name: str, kind: ErrorKind) -> None:
    reply = arrivals(make_fault(name), [0], [0])[0]
    assert reply.error is not None
    assert reply.error.kind is kind


def test_stale_workers_send_what_they_computed_on_an_older_model() -> None:
    # Worker 0 is asked at steps 0 to 5; at most the gradient of 2 steps before.
    assert numbers(arrivals(zeno.Stale(age=2), [0], [0] * 6)) == [0.0, 0.0, 0.0, 1.0, 2.0, 3.0]


def test_stale_workers_of_a_synchronous_run_send_old_gradients() -> None:
    run = zeno.Run(workers=3, faulty=3, steps=12, rule="mean", batch_size=10, eval_every=1)
    slow = zeno.train(replace(run, fault="stale(3)"))
    none = zeno.train(replace(run, faulty=0))
    assert slow[0] == replace(none[0], faulty=[0, 1, 2])
    assert slow[1].train_loss != none[1].train_loss


def test_flooding_workers_reply_faster_with_the_message_of_another_fault() -> None:
    run = zeno.Run(workers=4, asynchronous=True, fault="flood(30, 'zero')", faulty=2, rule="mean")
    delay = delays(run)
    assert [delay(worker, 0) for worker in range(4)] == pytest.approx([1 / 30, 1 / 30, 1, 1])
    assert numbers(arrivals(run.fault, [0, 1], [1, 3])) == [0.0, 30.0]
    slow = replace(run, fault="slow(3)")
    assert [delays(slow)(worker, 0) for worker in range(4)] == [4, 4, 1, 1]


@pytest.mark.parametrize("sends", ["label_flip", "flood", "nothing", "sign_flip(scale=-1)"])
def test_a_flood_is_of_messages(sends: str) -> None:
    with pytest.raises(ValueError, match=r"sends|Unknown fault|scale"):
        zeno.Flood(sends=sends)


def test_the_last_gradients_are_part_of_the_state() -> None:
    order = [0, 2, 0]
    cluster = zeno.Faulty(FakeTickets(M, order, values), lambda step: {0: zeno.InnerProduct(eps=1.0)}, seed=0)
    for worker in range(M):
        cluster.ask(worker, torch.zeros(D), {}, 0)
    cluster.next_reply()
    cluster.next_reply()
    state: Any = cluster.state_to_save()
    again = zeno.Faulty(FakeTickets(M, [0], values), lambda step: {0: zeno.InnerProduct(eps=1.0)}, seed=0)
    again.load_state(state)
    again.ask(0, torch.zeros(D), {}, 3)
    reply = again.next_reply()
    assert reply is not None
    assert numbers([reply]) == [-(3 + 20) / 2]
