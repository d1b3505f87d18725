"""Asynchronous workers on a real Ray cluster: real processes that are killed, stopped, slow or wrong, and come back."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import zeno
from zeno.workers.ray import AsynchronousRayCluster, RayCluster
from zeno.workers.ray.deadline import Deadline
from zeno.workers.reply import ErrorKind, ReplyError

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray"),
    pytest.mark.usefixtures("ray_session"),
]

D = 50
ON_RAY = zeno.ExecutionSettings(cluster="ray", workers_per_actor=1, cpus_per_actor=0)


@dataclass(frozen=True)
class Odd:
    """A worker that sends `by_step[step]()`, and otherwise its index, d times."""

    index: int
    by_step: Mapping[int, Callable[[], Any]]

    def gradient(self, params: Tensor, buffers: Mapping[str, Tensor], step: int) -> Any:
        return self.by_step[step]() if step in self.by_step else torch.full((D,), float(self.index))


def cluster(*workers: Mapping[int, Callable[[], Any]], **more: Any) -> AsynchronousRayCluster:
    odd = [Odd(i, by_step) for i, by_step in enumerate(workers)]
    return AsynchronousRayCluster(odd, **{"workers_per_actor": 1, "cpus_per_actor": 0, "deadline": 30.0, **more})


def ask_idle(on_ray: RayCluster, step: int) -> list[int]:
    idle = sorted(on_ray.idle(step))
    for worker in idle:
        on_ray.ask(worker, torch.zeros(D), {}, step)
    return idle


def slowly(seconds: float) -> Callable[[], Tensor]:
    def gradient() -> Tensor:
        time.sleep(seconds)
        return torch.full((D,), 7.0)

    return gradient


def test_replies_come_as_they_arrive_and_nobody_waits_for_a_slow_worker() -> None:
    with cluster({}, {0: slowly(3.0)}, {}) as on_ray:
        assert ask_idle(on_ray, 0) == [0, 1, 2]
        seen = []
        for step in range(1, 21):
            reply = on_ray.next_reply()
            assert reply is not None
            assert reply.gradient is not None
            seen.append((reply.worker, reply.step, float(reply.gradient[0])))
            if reply.worker == 1:
                break
            assert ask_idle(on_ray, step) == [reply.worker], "one ticket each"
            time.sleep(0.25)
        assert seen[-1] == (1, 0, 7.0)
        assert {worker for worker, *_ in seen[:-1]} == {0, 2}
        assert len(seen) > 4


@pytest.mark.slow
def test_all_replies_that_are_there_take_turns() -> None:
    """Worker 0 answers at once; while the server is busy, the others are there as well."""
    with cluster({}, {}, {}) as on_ray:
        seen = []
        for step in range(9):
            ask_idle(on_ray, step)
            time.sleep(0.2)  # all of them answer
            reply = on_ray.next_reply()
            assert reply is not None
            seen.append(reply.worker)
        assert sorted(seen[-3:]) == sorted(seen[-6:-3]) == [0, 1, 2]


def test_without_a_ticket_there_is_no_reply() -> None:
    with cluster({}) as on_ray:
        assert on_ray.next_reply() is None
        ask_idle(on_ray, 0)
        assert on_ray.next_reply() is not None
        assert on_ray.next_reply() is None
        assert list(on_ray.idle(1)) == [0]


def raises() -> Tensor:
    raise ZeroDivisionError("out of luck")


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (raises, ErrorKind.RAISED),
        (lambda: "hello", ErrorKind.MALFORMED),
        (lambda: torch.ones(12), ErrorKind.MALFORMED),
        (lambda: torch.full((D,), torch.nan), ErrorKind.NOT_FINITE),
    ],
    ids=["raises", "a string", "12 numbers", "not finite"],
)
def test_a_broken_reply_is_an_error_of_its_worker_only(sent: Callable[[], Any], kind: ErrorKind) -> None:
    with cluster({0: sent}, {}, workers_per_actor=2) as on_ray:
        ask_idle(on_ray, 0)
        replies = {reply.worker: reply for reply in (on_ray.next_reply(), on_ray.next_reply()) if reply is not None}
        assert replies[0].error is not None
        assert (replies[0].error.kind, replies[0].lost) == (kind, True)
        assert (replies[1].error, replies[1].lost) == (None, False)
        assert on_ray.status == (2, 0, 0)


def test_a_worker_that_is_killed_loses_its_ticket_and_comes_back() -> None:
    with cluster({0: lambda: os.kill(os.getpid(), signal.SIGKILL)}, {}) as on_ray:
        ask_idle(on_ray, 0)
        errors, step, until = [], 0, time.monotonic() + 60
        while time.monotonic() < until:
            reply = on_ray.next_reply()
            if reply is not None and reply.worker == 0:
                if reply.error is None:
                    break
                errors.append((reply.error.text, reply.lost))
                assert on_ray.status.lost == 1
            step += 1
            ask_idle(on_ray, step)
            time.sleep(0.02)
        assert errors == [("died", True)]
        assert reply is not None
        assert reply.worker == 0
        assert on_ray.status == (2, 0, 0)


def test_when_all_are_away_the_server_waits_for_the_first_to_come_back() -> None:
    with cluster({0: lambda: os.kill(os.getpid(), signal.SIGKILL)}, deadline=60.0) as on_ray:
        ask_idle(on_ray, 0)
        reply = on_ray.next_reply()
        assert reply is not None
        assert reply.error is not None
        assert list(on_ray.idle(1)) == []
        assert on_ray.next_reply() is None
        assert list(on_ray.idle(1)) == [0]


def test_a_worker_that_hangs_is_restarted_when_patience_ends() -> None:
    with cluster({}, {}, deadline=1.0, patience=2) as on_ray:
        stopped = on_ray.actors[1].pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        errors, step, until = [], 0, time.monotonic() + 60
        while time.monotonic() < until:
            ask_idle(on_ray, step)
            reply = on_ray.next_reply()
            if reply is not None and reply.worker == 1:
                if reply.error is None:
                    break
                errors.append((reply.error.kind, reply.error.text.split(" s, ")[-1], reply.lost))
            step += 1
            time.sleep(0.02)
        assert errors == [(ErrorKind.LATE, "2 times in a row: restarted", True)]
        assert on_ray.actors[1].pid != stopped
        assert step > 10, "the other worker went on"


def test_a_worker_that_hangs_is_noticed_though_an_answer_is_always_there() -> None:
    with cluster({}, {}, {0: slowly(1e4)}, deadline=1.0, patience=2) as on_ray:
        seen, until = [], time.monotonic() + 30
        for step in range(1000):
            ask_idle(on_ray, step)
            reply = on_ray.next_reply()
            assert reply is not None
            if reply.worker == 2 or time.monotonic() > until:
                break
            seen.append(reply.worker)
            time.sleep(0.1)  # as a slow rule may take: longer than the others need
        assert reply is not None
        assert reply.error is not None
        assert (reply.worker, reply.error.kind, reply.lost) == (2, ErrorKind.LATE, True)
        assert {0, 1} == set(seen)


def test_a_worker_much_slower_than_the_others_answers_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default deadline fits the others; it doubles each time that this one is restarted."""
    monkeypatch.setattr(Deadline, "LEAST", 1.0)
    with cluster({}, dict.fromkeys(range(100_000), slowly(1.8)), deadline=None, patience=1) as on_ray:
        seen: list[ReplyError | None] = []
        step, until = 0, time.monotonic() + 60
        while time.monotonic() < until and (not seen or seen[-1] is not None):
            ask_idle(on_ray, step)
            reply = on_ray.next_reply()
            if reply is not None and reply.worker == 1:
                seen.append(reply.error)
            step += 1
            time.sleep(0.02)
        *restarts, last = seen
        assert last is None
        assert len(restarts) >= 1
        assert all(error is not None and error.kind is ErrorKind.LATE for error in restarts)


def test_the_default_deadline_grows_up_to_a_limit_and_a_fixed_one_stays() -> None:
    assert Deadline(None).longer(2.0) == 2 * Deadline.FIRST
    assert Deadline(None).longer(1e9) == Deadline.MOST
    assert Deadline(3.0).longer(2.0) == 3.0


@pytest.mark.slow
def test_a_pause_of_the_server_alone_is_no_missed_deadline() -> None:
    with cluster({0: slowly(0.5)}, {0: slowly(4.0)}, deadline=3.0, patience=1) as on_ray:
        ask_idle(on_ray, 0)
        time.sleep(3.5)  # as an evaluation may take
        for worker in (0, 1):
            reply = on_ray.next_reply()
            assert reply is not None
            assert (reply.worker, reply.error) == (worker, None)


RUN = zeno.Run(
    workers=4,
    batch_size=20,
    steps=60,
    eval_every=20,
    asynchronous=True,
    buffer=2,
    rule="zeno_auto",
    fault="inner_product(on=1)+garbage(on=1, chance=0.5)",
    faulty=2,
    worker_momentum=0.5,
)


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> list[AsynchronousRayCluster]:
    """The clusters that runs have started."""
    found: list[AsynchronousRayCluster] = []
    enter = AsynchronousRayCluster.__enter__

    def spy(self: AsynchronousRayCluster) -> Any:
        found.append(self)
        return enter(self)

    monkeypatch.setattr(AsynchronousRayCluster, "__enter__", spy)
    return found


def test_a_replay_of_a_run_with_killed_and_stopped_workers_is_the_same_to_the_last_bit(
    tmp_path: Path, clusters: list[AsynchronousRayCluster]
) -> None:
    def hurt(record: zeno.Record) -> None:
        for step, actor, number in ((5, 3, signal.SIGKILL), (8, 2, signal.SIGSTOP), (9, 0, signal.SIGKILL)):
            pid = clusters[0].actors[actor].pid
            if record.step == step and pid is not None:
                os.kill(pid, number)
        time.sleep(0.1)

    records = zeno.train(RUN, tmp_path / "run", on_record=hurt, execution=replace(ON_RAY, deadline=2.0, patience=1))
    lost = {(worker, record.errors[worker].kind) for record in records for worker in record.lost}
    assert {(3, ErrorKind.DIED), (2, ErrorKind.LATE)} <= lost
    assert any(3 in record.staleness and 3 not in record.errors for record in records[8:]), "it came back"
    replayed = zeno.train(RUN, tmp_path / "again", execution=zeno.ExecutionSettings(replay=str(tmp_path / "run")))
    assert replayed == records


def test_a_run_goes_on_with_the_only_worker_that_is_left(clusters: list[AsynchronousRayCluster]) -> None:
    def hurt(record: zeno.Record) -> None:
        for actor in clusters[0].actors[:3] if record.step == 5 else ():
            assert actor.pid is not None
            os.kill(actor.pid, signal.SIGKILL)

    records = zeno.train(replace(RUN, steps=30, fault="zero", faulty=0), on_record=hurt, execution=ON_RAY)
    assert [record.step for record in records] == list(range(30))
    assert not any(record.skipped for record in records)
    assert {worker for record in records for worker in record.lost} == {0, 1, 2}
    assert any(set(record.staleness) == {3} for record in records[6:])


def test_a_run_on_ray_that_sigterm_ends_can_be_resumed(tmp_path: Path) -> None:
    run = replace(RUN, steps=20)

    def stop(record: zeno.Record) -> None:
        if record.step == 9:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        zeno.train(run, tmp_path, on_record=stop, execution=ON_RAY)
    records = zeno.train(run, tmp_path, resume=True, execution=ON_RAY)
    assert [record.step for record in records] == list(range(20))
    assert max(version for record in records[:10] for _, version in record.arrivals or ()) < 10
    assert min(version for record in records[10:] for _, version in record.arrivals or ()) == 10


def test_a_ray_cluster_has_real_delays() -> None:
    with pytest.raises(ValueError, match="A Ray cluster has real delays"):
        zeno.train(replace(RUN, delay="lognormal(1)"), execution=ON_RAY)


@pytest.mark.slow
def test_a_resumed_run_on_ray_can_be_replayed(tmp_path: Path) -> None:
    zeno.train(replace(RUN, steps=20), tmp_path / "run", execution=ON_RAY)
    records = zeno.train(RUN, tmp_path / "run", execution=ON_RAY, resume=True)
    assert zeno.train(RUN, execution=zeno.ExecutionSettings(replay=str(tmp_path / "run"))) == records
