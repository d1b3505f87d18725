"""How faults reach the workers of a cluster."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import zeno
from support.fake_cluster import CAME_LATE, DIED, ROWS, D, FakeCluster, M, normal
from zeno.faults.injection import poisoned
from zeno.workers.worker import Worker


def test_the_other_workers_are_asked_when_a_needed_gradient_is_missing() -> None:
    cluster = normal(1)
    faulty = zeno.Faulty(cluster, lambda step: dict.fromkeys([1, 2, 5], zeno.BitFlip()), seed=0)
    sent = {r.worker: r for r in faulty.gradients(torch.zeros(D), {}, 0)}
    assert cluster.asked == [[0, 1, 3, 4, 6], [2, 5]]
    assert (sent[1].gradient, sent[1].error) == (None, DIED)
    for i in (2, 5):
        assert torch.equal(sent[i].gradient, -ROWS[2])  # type: ignore[arg-type]


def test_a_faulty_worker_that_is_skipped_sends_nothing_and_is_not_asked() -> None:
    cluster = normal()
    faulty = zeno.Faulty(cluster, lambda step: dict.fromkeys([1, 2, 5], zeno.BitFlip()), seed=0)
    sent = {r.worker: r.gradient for r in faulty.gradients(torch.zeros(D), {}, 0, skip={0, 1})}
    assert cluster.asked == [[2, 3, 4, 6]]
    assert sorted(sent) == [2, 3, 4, 5, 6]
    assert torch.equal(sent[5], -ROWS[2])  # type: ignore[arg-type]


def test_faults_of_one_cluster_around_another_see_every_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    def sent(cluster: FakeCluster, fault: zeno.Fault) -> list[list[float]]:
        inner = zeno.Faulty(cluster, lambda step: dict.fromkeys([3, 4], fault), seed=0)
        outer = zeno.Faulty(inner, lambda step: {1: zeno.BitFlip(), 2: zeno.BitFlip()}, seed=0)
        replies = outer.gradients(torch.zeros(D), {}, 0)
        return [reply.gradient.tolist() for reply in replies if reply.gradient is not None]

    cluster = normal()
    sent(cluster, zeno.ALIE())
    assert cluster.asked == [list(range(M))], "the fault inside sees what the workers of the one outside computed"
    sparing = sent(normal(), zeno.Zero())
    assert len(sparing) == M
    monkeypatch.setattr(zeno.Zero, "needs", zeno.Fault.needs)
    assert sent(normal(), zeno.Zero()) == sparing


def fixed() -> FakeCluster:
    """Three workers: two send 1 and 2, the third is dead."""
    return FakeCluster([torch.full((2,), 1.0), torch.full((2,), 2.0), zeno.Reply(2, 0, None, DIED)])


def replies(cluster: zeno.Cluster, step: int = 0) -> dict[int, float | None]:
    return {
        r.worker: None if r.gradient is None else r.gradient[0].item()
        for r in cluster.gradients(torch.zeros(2), {}, step)
    }


def flipping(cluster: zeno.Cluster, *workers: int) -> zeno.Faulty:
    return zeno.Faulty(cluster, lambda step: dict.fromkeys(workers, zeno.SignFlip()), seed=0)


def test_faults_act_on_the_workers_they_are_given_and_on_no_other() -> None:
    cluster = zeno.Faulty(fixed(), lambda step: dict.fromkeys([step % 2, 2], zeno.SignFlip(3.0)), seed=0)
    assert replies(cluster, step=0) == {1: 2.0, 0: -3.0, 2: None}
    assert replies(cluster, step=1) == {1: -6.0, 0: 1.0, 2: None}


def test_all_workers_or_only_silent_ones_may_be_faulty() -> None:
    assert replies(flipping(fixed(), 0, 1, 2)) == {1: -2.0, 0: -1.0, 2: None}
    assert replies(flipping(fixed(), 2)) == {1: 2.0, 0: 1.0, 2: None}


def test_what_a_fault_draws_depends_on_the_seed_and_the_step() -> None:
    def sent(seed: int, step: int) -> float | None:
        return replies(zeno.Faulty(fixed(), lambda step: {0: zeno.Gaussian()}, seed), step)[0]

    assert sent(0, 0) == sent(0, 0)
    assert len({sent(0, 0), sent(0, 1), sent(1, 0)}) == 3


def test_workers_that_are_silent_or_send_other_sizes_are_passed_on_as_they_are() -> None:
    odd = FakeCluster([torch.ones(5), torch.ones(2), None])
    assert replies(flipping(odd, 0, 1, 2)) == {0: 1.0, 1: -1.0}


def test_a_faulty_cluster_closes_the_one_inside() -> None:
    inner = fixed()
    with flipping(inner):
        pass
    assert inner.events == ["entered", "left"]


def test_label_flip_reaches_the_gradient_of_its_worker() -> None:
    problem = zeno.Problem(nn.Linear(2, 3))
    dataset = zeno.Dataset(torch.rand(30, 2), torch.arange(30) % 3, classes=3)
    workers = [Worker(i, problem, dataset, torch.arange(30), batch_size=5, seed=0) for i in range(2)]
    faults = {1: zeno.LabelFlip()}
    wrong = poisoned(workers, lambda step: faults)
    cluster = zeno.Faulty(zeno.LocalCluster(wrong), lambda step: faults, seed=0)
    params = problem.flat.clone()
    sent = {r.worker: r.gradient for r in cluster.gradients(params, {}, step=4)}

    batch = workers[1].batch(4)
    flipped = zeno.Batch(batch.inputs, 2 - batch.targets)
    assert torch.equal(sent[0], problem.gradient(params, workers[0].batch(4), 0))  # type: ignore[arg-type]
    assert torch.equal(sent[1], problem.gradient(params, flipped, 0))  # type: ignore[arg-type]


def test_each_fault_sees_its_own_workers_those_without_any_and_what_was_sent_before() -> None:
    scenes = []

    class Looking(zeno.Fault):
        def on_gradients(self, scene: zeno.Scene) -> Tensor:
            scenes.append(scene)
            return scene.own

    class Stale(zeno.Fault):
        def on_replies(self, replies: Sequence[zeno.Reply], scene: zeno.Scene) -> list[zeno.Reply]:
            return [replace(reply, step=scene.step - 1) for reply in replies]

    faults = {0: zeno.SignFlip(), 1: Stale(), 2: Looking(), 5: Looking(), 6: zeno.SignFlip(2.0)}
    cluster = zeno.Faulty(normal(), lambda step: faults, seed=0)
    cluster.trial = lambda candidates, step: candidates.mean(dim=0) * step
    list(cluster.gradients(torch.zeros(D), {}, 4))
    (scene,), rows = scenes, ROWS
    assert (scene.step, scene.size, scene.workers) == (4, M, [2, 5])
    assert torch.equal(scene.own, rows[[2, 5]])
    assert torch.equal(scene.correct, rows[[3, 4]])
    assert torch.equal(scene.computed, rows[[2, 5, 3, 4]])
    assert sorted(scene.others) == [0, 3, 4, 6], "what is of another step will not count"
    assert torch.equal(scene.others[0], -rows[0]), "sent before"
    assert torch.equal(scene.others[6], rows[6]), "to be flipped later"
    assert scene.aggregate is not None
    update = scene.aggregate(rows)
    assert update is not None
    assert torch.equal(update, rows.mean(dim=0) * 4)


def test_late_replies_of_the_cluster_inside_pass_through() -> None:
    late = zeno.Reply(1, 3, None, CAME_LATE, late=True)
    cluster = zeno.Faulty(normal(extra=[late]), lambda step: {1: zeno.Hang(), 2: zeno.Slow()}, seed=0)
    sent = cluster.gradients(torch.zeros(D), {}, 9)
    assert [(reply.worker, reply.late) for reply in sent] == [(1, True), (0, False), *((i, False) for i in range(3, M))]


def test_what_faults_remember_is_saved_and_loaded() -> None:
    def faulty() -> zeno.Faulty:
        return zeno.Faulty(normal(), lambda step: {1: zeno.Replay(), 2: zeno.Slow(steps=2)}, seed=0)

    first, second = faulty(), faulty()
    for step in range(2):
        list(first.gradients(torch.zeros(D), {}, step))
    second.load_state(first.state_to_save())
    second.cluster = FakeCluster(list(ROWS + 1))
    late, *sent = second.gradients(torch.zeros(D), {}, 2)
    assert (late.worker, late.step, late.late) == (2, 0, True)
    assert torch.equal(sent[1].gradient, ROWS[1])  # type: ignore[arg-type]
