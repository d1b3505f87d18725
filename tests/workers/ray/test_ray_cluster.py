"""A real Ray cluster: real processes that are killed, stopped, late or wrong, and come back.

One cluster for all of these tests, on loopback, with packed workers; 20 actors are in test_ray_slow.py.
"""

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import zeno
from zeno.problem.oracle import LossOracle
from zeno.problem.problem import Problem
from zeno.problem.tasks import with_model
from zeno.records.folder import RECORDS_FILE, read
from zeno.server.engine import Engine
from zeno.server.scorers import ThreadScorer
from zeno.training.settings import from_settings
from zeno.workers import ray as on_ray
from zeno.workers.ray import RayCluster, RayScorers
from zeno.workers.ray.actor import Actor, Answer, Call
from zeno.workers.ray.deadline import Deadline
from zeno.workers.ray.session import find_ray
from zeno.workers.reply import ErrorKind, ReplyError
from zeno.workers.worker import Worker

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray"),
    pytest.mark.usefixtures("ray_session"),
]

RUN = zeno.Run(workers=6, batch_size=20, steps=8, eval_every=4, rule=zeno.Zeno(trim=2))
ON_RAY = zeno.ExecutionSettings(cluster="ray")
ALL_KINDS = (
    zeno.Backdoor(on=2, size=2)
    + zeno.LabelNoise(share=0.5, redraw=True, on=1)
    + zeno.ALIE(start=2)
    + zeno.Omniscient(chance=0.6)
    + zeno.Replay(every=3)
    + zeno.Crash(start=4)
    + zeno.Slow(steps=2)
    + zeno.Garbage()
)
D = 50


@dataclass(frozen=True)
class Odd:
    """A worker that sends `by_step[step]()`, and otherwise its index, d times."""

    index: int
    by_step: Mapping[int, Callable[[], Any]]

    def gradient(self, params: Tensor, buffers: Mapping[str, Tensor], step: int) -> Any:
        return self.by_step[step]() if step in self.by_step else torch.full((D,), float(self.index))


def ask(cluster: zeno.Cluster, step: int, need: int = 1) -> dict[int, zeno.Reply]:
    """The replies of one step by worker; exactly one from each."""
    replies = [r for r in cluster.gradients(torch.zeros(D), {}, step, need) if not r.late]
    assert sorted(r.worker for r in replies) == list(range(cluster.size))
    return {r.worker: r for r in replies}


KINDS = {
    ErrorKind.LATE: ("no answer", "its answer was lost", "is starting", "is being restarted"),
    ErrorKind.DIED: ("died", "cannot be started"),
}


def errors(cluster: zeno.Cluster, step: int, need: int = 1) -> dict[int, str]:
    """Why there is no gradient, by worker."""
    found = {i: r.error for i, r in ask(cluster, step, need).items() if r.error is not None}
    assert all(error.text.startswith(KINDS[error.kind]) for error in found.values())
    return {i: error.text for i, error in found.items()}


def until_back(cluster: zeno.Cluster, first_step: int, seconds: float = 60.0) -> int:
    """Steps until every worker answers again; returns the last of them."""
    step, until = first_step, time.monotonic() + seconds
    while errors(cluster, step):
        assert time.monotonic() < until, errors(cluster, step)
        step += 1
        time.sleep(0.05)
    return step


# The same result


@pytest.mark.parametrize(
    "run",
    [
        replace(RUN, faulty=2, fault=zeno.BitFlip(), redraw=True),
        replace(RUN, faulty=2, fault=zeno.LabelFlip(), optimizer="sgd(momentum=0.9)", split=zeno.Disjoint()),
        replace(RUN, model="small_cnn", eval_samples=100, steps=4),
        replace(RUN, rule=zeno.chain(zeno.NNM(faulty=2), zeno.Median()), faulty=2, fault=zeno.Gaussian()),
        replace(RUN, workers=10, faulty=9, fault=ALL_KINDS, rule=zeno.Zeno(trim=9, batch_size=16)),
    ],
    ids=[
        "colluding faults",
        "poisoned data",
        "scored on arrival, batch norm and dropout",
        "another rule",
        "faults of every kind",
    ],
)
def test_the_same_run_gives_the_same_records_here_and_on_ray(run: zeno.Run) -> None:
    assert zeno.train(run, execution=ON_RAY) == zeno.train(run)


@pytest.mark.slow
def test_scorers_give_the_same_records() -> None:
    run = replace(RUN, model="small_cnn", eval_samples=100, steps=4, rule=zeno.Zeno(trim=2, batch_size=32))
    assert zeno.train(run, execution=replace(ON_RAY, scorers=2)) == zeno.train(run)


# Malformed replies


def raises() -> Tensor:
    raise ZeroDivisionError("out of luck")


EXPECTED = "expected torch.float32, torch.strided"


class Unprintable:
    __str__ = __repr__ = lambda self: 1 / 0  # type: ignore[assignment, return-value]


BROKEN: list[tuple[str, Callable[[], Any], ErrorKind, str]] = [
    ("raises", raises, ErrorKind.RAISED, "raised ZeroDivisionError: out of luck"),
    ("a string", lambda: "hello", ErrorKind.MALFORMED, "sent str, expected a tensor"),
    ("nothing", lambda: None, ErrorKind.MALFORMED, "sent NoneType, expected a tensor"),
    ("12 numbers", lambda: torch.ones(12), ErrorKind.MALFORMED, f"sent numbers of shape [12], expected [{D}]"),
    (
        "500 MB",
        lambda: torch.ones(125_000_000),
        ErrorKind.MALFORMED,
        f"sent numbers of shape [125000000], expected [{D}]",
    ),
    (
        "float64",
        lambda: torch.ones(D, dtype=torch.float64),
        ErrorKind.MALFORMED,
        f"sent torch.float64, torch.strided, {EXPECTED}",
    ),
    (
        "bf16",
        lambda: torch.ones(D, dtype=torch.bfloat16),
        ErrorKind.MALFORMED,
        f"sent torch.bfloat16, torch.strided, {EXPECTED}",
    ),
    ("an array of objects", lambda: np.ones(D, object), ErrorKind.MALFORMED, "sent ndarray, expected a tensor"),
]


@pytest.fixture(scope="module")
def odd(ray_session: None) -> Iterator[RayCluster]:
    by_step = {step: make for step, (_, make, *_) in enumerate(BROKEN)}
    workers = [Odd(i, by_step if i == 1 else {}) for i in range(4)]
    with RayCluster(workers, deadline=30.0, cpus_per_actor=0) as cluster:  # beside the clusters of other tests
        yield cluster


@pytest.mark.parametrize("step", range(len(BROKEN)), ids=[name for name, *_ in BROKEN])
def test_a_broken_reply_is_an_error_of_its_worker_only(odd: RayCluster, step: int) -> None:
    replies = ask(odd, step)
    assert {i: r.gradient.tolist() for i, r in replies.items() if r.gradient is not None} == {
        i: [float(i)] * D for i in (0, 2, 3)
    }
    assert replies[1].error == ReplyError(*BROKEN[step][2:])
    assert odd.status == (4, 0, 0), "it did answer"


def test_workers_that_are_skipped_are_not_asked_and_neither_late_nor_lost(odd: RayCluster) -> None:
    step, needed = len(BROKEN), odd.deadline._needed
    for skip in ({1, 3}, {2, 3}, {0, 1, 2, 3}):
        before = list(needed)
        replies = list(odd.gradients(torch.zeros(D), {}, step, skip=skip))  # of one step as often as one likes
        assert {r.worker: r.gradient[0].item() for r in replies if r.gradient is not None} == {
            i: float(i) for i in range(4) if i not in skip
        }
        assert len(replies) == 4 - len(skip)
        assert odd.status == (4, 0, 0)
        assert not any(actor.calls or actor.to_ask for actor in odd.actors)
    assert list(needed) == before, "how long it took to ask nobody says nothing of the deadline"
    assert errors(odd, step + 1) == {}


def test_answers_of_actors_are_checked_before_they_are_used() -> None:
    call, good, like = Call(3, 7), np.ones(D, np.float32), torch.zeros(D)

    def error(answer: object) -> tuple[str, str]:
        found = call.reply(answer, like).error
        assert found is not None
        return found.kind.value, found.text

    reply = call.reply(Answer(7, good), like)
    assert (reply.worker, reply.step, reply.error) == (3, 7, None)
    assert isinstance(reply.gradient, Tensor)
    assert call.reply(Answer(5, good), like).step == 5, "an old step's gradient says so, and the server discards it"
    assert error("hello") == ("malformed", "sent str, expected an answer")
    assert error((7, good, None)) == ("malformed", "sent tuple, expected an answer")
    assert error(Answer("7", good)) == ("malformed", "sent Answer, expected an answer")  # type: ignore[arg-type]
    assert error(Answer(7, good.astype(np.float64))) == ("malformed", f"sent torch.float64, torch.strided, {EXPECTED}")
    assert error(Answer(7, good.view(np.matrix))) == ("malformed", "sent matrix, expected an array of floating point")
    assert error(Answer(7, None)) == ("malformed", "sent NoneType, expected an array of floating point")
    assert error(Answer(7, good.astype(object))) == ("malformed", "sent ndarray, expected an array of floating point")
    assert error(Answer(7, good.astype(">f4"))) == ("malformed", "sent ndarray, expected an array of floating point")
    assert error(Answer(7, good[:3])) == ("malformed", f"sent numbers of shape [3], expected [{D}]")
    raised = ReplyError(ErrorKind.RAISED, "raised OSError: x")
    assert error(Answer(7, None, raised)) == ("raised", "raised OSError: x")
    died = ReplyError(ErrorKind.DIED, "died")
    assert error(Answer(7, None, died)) == ("raised", "raised died"), "only the driver can say that a worker died"
    assert error(Answer(7, None, "died")) == ("raised", "raised str")  # type: ignore[arg-type]
    odd = ReplyError(ErrorKind.RAISED, Unprintable())  # type: ignore[arg-type]
    for one in (Unprintable(), odd):
        assert error(Answer(7, None, one))[0] == "raised"  # type: ignore[arg-type]


def test_malformed_answers_of_foreign_actors_are_recorded_and_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver checks answers itself: actors may be replaced."""

    class Lying(Actor):  # in here, so that it travels as a whole
        def gradient(self, worker: int, step: int, inputs: Any) -> Any:
            good = np.ones(D, np.float32)
            lies: dict[int, Callable[[], Any]] = {
                1: lambda: Answer(step, np.full(D, np.nan, np.float32)),
                2: lambda: Answer(step - 1, good),
                3: lambda: Answer(step, np.ones(125_000_000, np.float32)),
                4: lambda: "hello",
                5: lambda: Answer(step, good.astype(np.float64)),
                6: lambda: good,
                7: lambda: Unreadable(),
            }
            return lies[worker]() if worker in lies else Answer(step, good)

    class Unreadable:
        def __reduce__(self) -> Any:
            return (int, ("what",))

    monkeypatch.setattr(on_ray.cluster, "Actor", Lying)
    problem = Problem(nn.Linear(D, 1, bias=False), nn.functional.mse_loss)
    dataset = zeno.Dataset(torch.rand(9, D), torch.rand(9, 1))
    with RayCluster([Odd(i, {}) for i in range(9)], deadline=60.0) as cluster:
        params = nn.Parameter(torch.zeros(D))
        optimizer = torch.optim.SGD([params], lr=0.1)
        server = Engine(problem, zeno.Zeno(trim=7), cluster, dataset, torch.arange(9), optimizer)
        for step in (5, 6):
            outcome = server.step(step)
            unreadable = outcome.errors.pop(7)
            assert unreadable.text.startswith("sent what cannot be read")
            assert {i: error.text for i, error in outcome.errors.items()} == {
                1: "sent numbers that are not finite",
                2: f"sent the gradient of step {step - 1}, expected step {step}",
                3: f"sent numbers of shape [125000000], expected [{D}]",
                4: "sent str, expected an answer",
                5: f"sent torch.float64, torch.strided, {EXPECTED}",
                6: "sent ndarray, expected an answer",
            }
            assert outcome.aggregate is not None
            assert outcome.aggregate.kept.nonzero().flatten().tolist() == [0, 8]
        assert cluster.status == (9, 0, 0)
        server.close()
    torch.testing.assert_close(params.detach(), torch.full((D,), -0.2))


# Processes that die and hang


def test_workers_that_are_killed_are_missing_for_a_while_and_come_back() -> None:
    with RayCluster([Odd(i, {}) for i in range(4)], workers_per_actor=1, deadline=30.0) as cluster:
        assert errors(cluster, 0) == {}
        killed = cluster.actors[2].pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        assert errors(cluster, 1) == {2: "died"}
        assert cluster.status == (3, 0, 1)
        began = time.monotonic()
        assert errors(cluster, 2) in ({2: "died"}, {})  # a fast machine has it back already
        assert time.monotonic() - began < 5, "nobody waits for one that is away"
        until_back(cluster, 3)
        assert cluster.actors[2].pid != killed
        assert cluster.machines == dict.fromkeys(range(4), socket.gethostname())
        assert cluster.status == (4, 0, 0)


@pytest.mark.slow
def test_when_all_but_one_are_killed_in_one_step_the_one_goes_on_and_the_others_come_back() -> None:
    by_step = {1: lambda: os.kill(os.getpid(), signal.SIGKILL)}
    workers = [Odd(i, {} if i == 3 else by_step) for i in range(4)]
    with RayCluster(workers, workers_per_actor=1, deadline=30.0) as cluster:
        assert errors(cluster, 1) == dict.fromkeys(range(3), "died")
        replies = ask(cluster, 2)
        assert replies[3].gradient is not None
        until_back(cluster, 3)


@pytest.mark.slow
def test_a_step_with_too_few_replies_waits_for_workers_that_are_restarting() -> None:
    by_step = {1: lambda: os.kill(os.getpid(), signal.SIGKILL)}
    with RayCluster([Odd(i, by_step) for i in range(2)], workers_per_actor=1, deadline=60.0) as cluster:
        assert errors(cluster, 1) == {0: "died", 1: "died"}
        assert len(errors(cluster, 2, need=1)) <= 1, "at least one came back within the step"


def test_a_worker_that_hangs_is_killed_when_patience_ends_and_comes_back() -> None:
    with RayCluster([Odd(i, {}) for i in range(3)], workers_per_actor=1, deadline=1.0, patience=2) as cluster:
        stopped = cluster.actors[1].pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        began = time.monotonic()
        assert errors(cluster, 0) == {1: "no answer in 1.0 s"}
        assert time.monotonic() - began < 10
        assert cluster.status == (2, 1, 0)
        assert errors(cluster, 1) == {1: "no answer in 1.0 s, 2 times in a row: restarted"}
        assert cluster.status == (2, 0, 1)
        began = time.monotonic()
        assert errors(cluster, 2) == {1: "is being restarted: it did not answer"}
        assert time.monotonic() - began < 0.9, "nobody waits for it now"
        until_back(cluster, 3)
        assert cluster.actors[1].pid != stopped


def test_a_late_reply_is_dropped_and_counted_and_its_worker_goes_on() -> None:
    def slowly() -> Tensor:
        time.sleep(1.5)
        return torch.zeros(D)

    with RayCluster([Odd(0, {0: slowly}), Odd(1, {})], workers_per_actor=1, deadline=1.0, patience=5) as cluster:
        assert errors(cluster, 0) == {0: "no answer in 1.0 s"}
        replies = list(cluster.gradients(torch.zeros(D), {}, 1))
        assert [(r.worker, r.step) for r in replies if r.late] == [(0, 0)]
        assert {r.worker for r in replies if not r.late and r.error is None} == {0, 1}, "asked again in the same step"
        assert cluster.status == (2, 0, 0)


@pytest.mark.slow
def test_a_packed_actor_that_is_slow_delivers_what_it_can_and_has_no_queue_of_old_steps() -> None:
    def slowly() -> Tensor:
        time.sleep(0.4)
        return torch.zeros(D)

    by_step = dict.fromkeys(range(4), slowly)
    with RayCluster([Odd(i, by_step) for i in range(6)], workers_per_actor=6, deadline=1.0) as cluster:
        missing = [len(errors(cluster, step)) for step in range(4)]
        assert 0 < min(missing) < 6
        assert cluster.actors[0].missed <= 1, "it is slow, and does not hang"
        assert len(cluster.actors[0].calls) <= 2
        until_back(cluster, 4, seconds=5.0)


def test_training_survives_killed_and_stopped_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    run = zeno.Run(workers=6, steps=80, eval_every=80, rule=zeno.Zeno(trim=4, batch_size=32))
    clusters: list[RayCluster] = []
    enter = RayCluster.__enter__

    def spy(self: RayCluster) -> RayCluster:
        clusters.append(self)
        return enter(self)

    monkeypatch.setattr(RayCluster, "__enter__", spy)

    def hurt(record: zeno.Record) -> None:
        for step, actor, number in ((5, 0, signal.SIGKILL), (6, 1, signal.SIGSTOP), (40, 2, signal.SIGKILL)):
            pid = clusters[0].actors[actor].pid
            if record.step == step and pid is not None:
                os.kill(pid, number)
        time.sleep(0.05)  # so that some steps see them back

    # Ray takes 1 to 2 s to notice that a process was killed.
    setup = replace(ON_RAY, workers_per_actor=2, deadline=3.0, patience=2)
    records = zeno.train(run, on_record=hurt, execution=setup)
    undisturbed = zeno.train(run)
    assert all(r.skipped is None for r in records)
    reasons = {(worker, why.text.split(",")[0].split(":")[0]) for r in records for worker, why in r.errors.items()}
    assert {(0, "died"), (2, "no answer in 3.0 s"), (2, "is being restarted"), (4, "died")} <= reasons
    assert records[-1].accuracy is not None
    assert undisturbed[-1].accuracy is not None
    assert abs(records[-1].accuracy - undisturbed[-1].accuracy) < 0.05


@pytest.mark.slow
def test_an_actor_that_cannot_be_created_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray.proxy, "CREATE_SECONDS", 1.0)
    broken = tmp_path / "broken"
    workers = [Fussy(0, tmp_path / "none", {}), Fussy(1, broken, {1: lambda: os.kill(os.getpid(), signal.SIGKILL)})]
    with RayCluster(workers, workers_per_actor=1, deadline=30.0) as cluster:
        broken.touch()
        step = 1
        while "cannot be started: OSError: the disk is full" not in errors(cluster, step).get(1, ""):
            step = 2
            time.sleep(0.2)
        broken.unlink()
        until_back(cluster, 3)


class Fussy(Odd):
    """A worker that cannot be unpickled while a file is there."""

    def __init__(self, index: int, file: Path, by_step: Mapping[int, Callable[[], Any]]) -> None:
        super().__init__(index, by_step)
        object.__setattr__(self, "file", file)

    def __reduce__(self) -> Any:
        return make_fussy, (self.index, self.file, self.by_step)  # type: ignore[attr-defined]


def make_fussy(index: int, file: Path, by_step: Mapping[int, Callable[[], Any]]) -> Fussy:
    if file.exists():
        raise OSError("the disk is full")
    return Fussy(index, file, by_step)


def test_workers_that_cannot_be_created_end_the_run_with_the_reason(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    with (
        pytest.raises(ValueError, match=r"A worker cannot be started: OSError: the disk is full"),
        RayCluster([Fussy(0, broken, {})]),
    ):
        pass


# The deadline


def test_the_deadline_follows_what_recent_steps_needed() -> None:
    deadline = Deadline(None)
    assert deadline.seconds == Deadline.FIRST
    for _ in range(10):
        deadline.needed(3.0)
    deadline.needed(500.0)
    assert deadline.seconds == 12.0
    for _ in range(30):
        deadline.needed(0.01)
    assert deadline.seconds == Deadline.LEAST
    for _ in range(30):
        deadline.needed(1e6)
    assert deadline.seconds == Deadline.MOST
    deadline.too_short(3.0)
    assert deadline.seconds == 12.0
    assert Deadline(2.5).seconds == 2.5


@pytest.mark.slow
def test_workers_that_all_become_slower_than_the_deadline_are_waited_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Deadline, "LEAST", 0.5)

    def slowly() -> Tensor:
        time.sleep(1.0)
        return torch.zeros(D)

    by_step = dict.fromkeys(range(3, 20), slowly)
    with RayCluster([Odd(i, by_step) for i in range(2)], workers_per_actor=1) as cluster:
        for step in range(3):
            assert errors(cluster, step) == {}
        for _ in range(30):  # of quick steps
            cluster.deadline.needed(0.001)
        assert set(errors(cluster, 3)) == {0, 1}
        assert any(errors(cluster, step) == {} for step in range(4, 7))


@pytest.mark.slow
def test_an_actor_that_hangs_while_it_restarts_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_ray.proxy, "START_SECONDS", 20.0)
    monkeypatch.setattr(on_ray.proxy, "CREATE_SECONDS", 1.0)
    hanging = tmp_path / "hanging"
    workers = [Odd(0, {}), Hanging(1, hanging, {1: lambda: os.kill(os.getpid(), signal.SIGKILL)})]
    with RayCluster(workers, workers_per_actor=1, deadline=30.0) as cluster:
        hanging.touch()
        assert errors(cluster, 1) == {1: "died"}
        until = time.monotonic() + 60
        while not (tmp_path / "hung").exists():
            assert set(errors(cluster, 2)) == {1}
            assert time.monotonic() < until
            time.sleep(0.1)
        hanging.unlink()
        until_back(cluster, 3, seconds=90)


class Hanging(Odd):
    """A worker that hangs while it is unpickled, as long as a file was there when it began."""

    def __init__(self, index: int, file: Path, by_step: Mapping[int, Callable[[], Any]]) -> None:
        super().__init__(index, by_step)
        object.__setattr__(self, "file", file)

    def __reduce__(self) -> Any:
        return make_hanging, (self.index, self.file, self.by_step)  # type: ignore[attr-defined]


def make_hanging(index: int, file: Path, by_step: Mapping[int, Callable[[], Any]]) -> Hanging:
    if file.exists():
        (file.parent / "hung").touch()
        time.sleep(1000)
    return Hanging(index, file, by_step)


# Scores


def test_candidates_are_scored_while_others_are_still_computing() -> None:
    scored: list[int] = []

    class Waiting(zeno.LocalCluster):
        """Its last worker answers only when the candidates of the others have been scored."""

        remote = True

        def gradients(self, *args: Any, **keywords: Any) -> Iterator[zeno.Reply]:
            replies = list(super().gradients(*args, **keywords))
            yield from replies[:-1]
            until = time.monotonic() + 20
            while len(scored) < len(replies) - 1 and time.monotonic() < until:
                time.sleep(0.01)
            scored.append(-1)
            yield replies[-1]

    class Spying(ThreadScorer):
        def _score_arrived(self) -> None:
            rows = [worker for worker, _ in self._arrived]
            super()._score_arrived()
            scored.extend(rows)

    task = zeno.load_task("digits")
    problem = Problem(task.model(), task.loss)
    workers = [Worker(i, problem, task.train, torch.arange(100), 20, 0) for i in range(4)]
    params = nn.Parameter(problem.flat.clone())
    optimizer = torch.optim.SGD([params], lr=0.1)
    spy = Spying()
    with Waiting(workers) as cluster:
        server = Engine(problem, zeno.Zeno(trim=1), cluster, task.train, torch.arange(100), optimizer, scorer=spy)
        outcome = server.step(0)
    spy.close()
    assert scored == [0, 1, 2, -1, 3]
    assert outcome.aggregate is not None
    assert int(outcome.aggregate.kept.sum()) == 3


def oracle_and_candidates() -> tuple[LossOracle, Tensor]:
    task = with_model(zeno.load_task("digits"), "small_cnn")
    torch.manual_seed(0)
    problem = Problem(task.model(), task.loss)
    oracle = problem.at(problem.flat.clone(), 0.1, task.train.batch(torch.arange(8)))
    return oracle, torch.randn(5, problem.size) * 0.01


@pytest.mark.slow
def test_scorers_that_had_to_wait_long_for_the_last_candidate_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray.scorers, "LEAST_WAIT", 0.5)
    oracle, candidates = oracle_and_candidates()
    scorers = RayScorers(oracle.problem, 2)
    try:
        scorers.begin(oracle, 5)
        scorers.add(0, candidates[0])
        time.sleep(2.0)
        scorers.descents()
        assert len(scorers.actors) == 2
    finally:
        scorers.close()


def test_scores_on_small_samples_have_the_same_bits_on_scorers() -> None:
    torch.manual_seed(0)
    problem = Problem(nn.Linear(8, 2))
    oracle = problem.at(problem.flat.clone(), 0.1, zeno.Batch(torch.randn(4, 8), torch.arange(4) % 2))
    candidates = torch.randn(6, problem.size)
    expected = oracle.descents(candidates)
    scorers = RayScorers(problem, 1)
    try:
        scorers.begin(oracle, 6)
        for worker in range(6):
            scorers.add(worker, candidates[worker])
        assert scorers.descents()[0].tolist() == expected.tolist()
    finally:
        scorers.close()


def test_scorers_say_after_which_candidates_the_loss_raises() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        assert float(outputs.abs().max()) < 1e6, "too large"
        return outputs.square().mean()

    problem = Problem(nn.Linear(8, 2), loss)
    oracle = problem.at(problem.flat.clone(), 0.1, zeno.Batch(torch.randn(4, 8), torch.arange(4) % 2))
    scorers = RayScorers(problem, 1)
    try:
        scorers.begin(oracle, 3)
        scorers.add(0, torch.zeros(problem.size))
        scorers.add(2, torch.full((problem.size,), 1e30))
        descents, raised = scorers.descents()
        assert raised == {2: "AssertionError: too large"}
        assert descents.isnan().tolist() == [False, True, True]
    finally:
        scorers.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_a_scorer_that_dies_or_hangs_changes_no_score(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray.scorers, "LEAST_WAIT", 4.0 if number == signal.SIGSTOP else 60.0)
    oracle, candidates = oracle_and_candidates()
    expected = oracle.descents(candidates)
    scorers = RayScorers(oracle.problem, 2)
    try:
        for step in range(2):
            scorers.begin(oracle, 6)
            for worker in (0, 1, 2, 4):
                scorers.add(worker, candidates[worker])
                if step == worker == 0:
                    os.kill(find_ray().get(scorers.actors[1].here.remote())[0], number)
            found, _ = scorers.descents()
            assert found[[0, 1, 2, 4]].tolist() == expected[[0, 1, 2, 4]].tolist()
            assert found[[3, 5]].isnan().all()
        assert len(scorers.actors) == (1 if number == signal.SIGSTOP else 2)
    finally:
        scorers.close()


# The session


def listening(pids: set[int]) -> list[str]:
    """The addresses that these processes listen on."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(os.readlink(link))
            except OSError:  # closed meanwhile
                continue
    found = []
    for family, name in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                words = bytes.fromhex(fields[1].split(":")[0])
                packed = b"".join(
                    struct.pack(">I", *struct.unpack("<I", words[k : k + 4])) for k in range(0, len(words), 4)
                )
                found.append(socket.inet_ntop(family, packed))
    return found


def descendants(pid: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found, new = {pid}, [pid]
    while new:
        new = [child for parent in new for child in children.get(parent, [])]
        found |= set(new)
    return found


def test_a_cluster_on_this_machine_listens_on_loopback_only() -> None:
    with RayCluster([Odd(0, {})]):
        addresses = listening(descendants(os.getpid()))
    assert addresses
    assert set(addresses) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_ctrl_c_stops_the_actors_saves_a_checkpoint_and_says_how_to_go_on(tmp_path: Path) -> None:
    settings = [
        "--workers",
        "4",
        "--steps",
        "100000",
        "--cluster",
        "ray",
        "--out",
        str(tmp_path / "run"),
    ]
    command = [sys.executable, "-m", "zeno", "train", *settings]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    records, until = tmp_path / "run" / RECORDS_FILE, time.monotonic() + 120
    while not records.exists() or records.read_text().count("\n") < 20:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    started = descendants(process.pid)
    addresses = listening(started)
    os.killpg(process.pid, signal.SIGINT)  # to all of them, as a terminal does
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 130, errors
    assert f"to continue: zeno train --resume {tmp_path / 'run'}" in errors
    assert "4 workers in" in errors
    assert len(started) > 4
    left = [pid for pid in started if Path(f"/proc/{pid}/stat").exists() and alive(pid)]
    assert left == []
    assert addresses
    assert set(addresses) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}

    done = len(read(tmp_path / "run"))
    run = from_settings({"workers": 4, "steps": done + 5})
    assert zeno.train(run, tmp_path / "run", execution=ON_RAY, resume=True) == zeno.train(run)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_the_sigterm_handler_is_restored() -> None:
    code = (
        "import signal\n"
        "from zeno.workers.ray import start_or_join\n"
        "signal.signal(signal.SIGTERM, own := lambda number, frame: None)\n"
        "with start_or_join(): pass\n"
        "assert signal.getsignal(signal.SIGTERM) is own\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_model_in_float64_raises_before_anything_starts(tmp_path: Path) -> None:
    digits = zeno.load_task("digits")
    task = zeno.Task(digits.train, digits.test, lambda: digits.model().double())
    with pytest.raises(ValueError, match=r"sends float32 only\. Found parameters of torch\.float64"):
        zeno.train(replace(RUN, task=task), tmp_path / "run", execution=ON_RAY)
    assert not (tmp_path / "run").exists()


def test_without_ray_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'zeno-sgd\[ray\]'"):
        zeno.train(RUN, execution=ON_RAY)
