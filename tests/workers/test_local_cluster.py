"""Workers in this process: each sends, to the last bit, what it would send alone."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zeno
from support.fake_cluster import FakeCluster
from zeno.faults.injection import poisoned
from zeno.problem import models
from zeno.problem.problem import Problem
from zeno.workers import local
from zeno.workers.worker import Worker

M = 5
DATA = zeno.Dataset(
    torch.rand(60, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 10, classes=10
)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: models.mlp((1, 8, 8), 10),
    "mlp with dropout": lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10)),
    "cnn with dropout and batch norm": lambda: models.small_cnn((1, 8, 8), 10),
}


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    yield
    torch.set_num_threads(1)


def make(model: str, sizes: Sequence[int] = (12,) * M, precision: str = "float32") -> zeno.LocalCluster:
    torch.manual_seed(0)
    problem = Problem(MODELS[model]())
    return zeno.LocalCluster(
        [Worker(i, problem, DATA, torch.arange(60), size, 0, precision) for i, size in enumerate(sizes)]
    )


def alone(cluster: zeno.LocalCluster, params: Tensor, step: int) -> list[Tensor]:
    """What copies of the workers compute with one torch thread, each as if on its own machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = []
    for worker in cluster.workers:
        own = replace(worker, problem=copy.deepcopy(worker.problem))
        found.append(own.gradient(params, worker.problem.buffers, step))
    torch.set_num_threads(threads)
    return found


def sent(cluster: zeno.LocalCluster, params: Tensor, step: int) -> list[Tensor]:
    replies = list(cluster.gradients(params, cluster.problem.buffers, step))
    assert all(reply.step == step and reply.error is None for reply in replies)
    gradients = {reply.worker: reply.gradient for reply in replies if reply.gradient is not None}
    return [gradients[i] for i in range(cluster.size)]


def same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("quick", [0.0, 1e9], ids=["slow", "quick"])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("model", MODELS)
def test_each_gradient_is_the_one_its_worker_computes_alone(
    model: str, threads: int, quick: float, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "QUICK", quick)
    cluster = make(model, precision=precision)
    torch.set_num_threads(threads)
    params, buffers = cluster.problem.flat.clone(), copy.deepcopy(cluster.problem.buffers)
    for step in range(4):
        found = sent(cluster, params, step)
        assert same(found, alone(cluster, params, step))
        assert not torch.equal(found[0], found[1])
        params = params - 0.1 * found[0]
    assert same(list(cluster.problem.buffers.values()), list(buffers.values()))
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("quick", [0.0, 1e9], ids=["slow", "quick"])
def test_a_fault_on_one_worker_changes_nothing_for_the_others(quick: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "QUICK", quick)
    cluster = make("mlp")
    torch.set_num_threads(2)
    params, wrong = cluster.problem.flat.clone(), poisoned(cluster.workers, lambda step: {3: zeno.LabelFlip()})
    with_a_fault = zeno.LocalCluster(wrong)
    for step in range(3):
        faulty, correct = sent(with_a_fault, params, step), sent(cluster, params, step)
        assert [torch.equal(a, b) for a, b in zip(faulty, correct, strict=True)] == [True, True, True, False, True]
        assert same(faulty, alone(with_a_fault, params, step))


@pytest.mark.parametrize("quick", [0.0, 1e9], ids=["slow", "quick"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_workers_that_are_skipped_compute_nothing_and_change_nothing_for_the_others(
    model: str, threads: int, quick: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "QUICK", quick)
    cluster, asked = make(model), list[int]()
    batch = Worker.batch

    def counting(self: Worker, step: int) -> zeno.Batch:
        asked.append(self.index)
        return batch(self, step)

    params, buffers = cluster.problem.flat.clone(), cluster.problem.buffers
    torch.set_num_threads(threads)
    skips: list[set[int]] = [set(), {0}, {0}, {1, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}, set(range(M)), {2, 4}, {4}, set()]
    for step, skip in enumerate(skips):
        expected = alone(cluster, params, step)
        with monkeypatch.context() as patch:
            patch.setattr(Worker, "batch", counting)
            found = {r.worker: r.gradient for r in cluster.gradients(params, buffers, step, skip=skip)}
        assert sorted(found) == sorted(asked) == [i for i in range(M) if i not in skip]
        assert all(torch.equal(gradient, expected[i]) for i, gradient in found.items() if gradient is not None)
        asked.clear()


def test_whether_all_at_once_are_the_same_is_found_out_for_each_number_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "QUICK", 1e9)
    at_once = Problem.gradients

    def off_for_three(self: Problem, params: Tensor, inputs: Tensor, *rest: Any) -> Tensor:
        found = at_once(self, params, inputs, *rest)
        return torch.nextafter(found, torch.tensor(1.0)) if len(inputs) == 3 else found

    monkeypatch.setattr(Problem, "gradients", off_for_three)
    cluster = make("mlp")
    params = cluster.problem.flat.clone()
    for step in range(6):
        skip = {0, 3} if step % 2 else set()
        found = {r.worker: r.gradient for r in cluster.gradients(params, {}, step, skip=skip)}
        expected = alone(cluster, params, step)
        assert all(torch.equal(gradient, expected[i]) for i, gradient in found.items() if gradient is not None)


def test_quick_gradients_are_computed_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "QUICK", 1e9)
    cluster = make("mlp")
    params = cluster.problem.flat.clone()
    for step in (0, 1):  # the first finds out how long one takes, the second whether all at once are the same
        sent(cluster, params, step)
    expected = alone(cluster, params, 2)
    monkeypatch.delattr(Problem, "gradient")
    assert same(sent(cluster, params, 2), expected)


def test_gradients_that_differ_when_computed_at_once_are_computed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "QUICK", 1e9)
    at_once = Problem.gradients
    monkeypatch.setattr(Problem, "gradients", lambda *args: torch.nextafter(at_once(*args), torch.tensor(1.0)))
    cluster = make("mlp")
    params = cluster.problem.flat.clone()
    for step in range(4):
        assert same(sent(cluster, params, step), alone(cluster, params, step))


def test_workers_may_have_batches_of_different_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "QUICK", 1e9)
    cluster = make("mlp", sizes=(3, 12, 12, 7))
    params = cluster.problem.flat.clone()
    for step in range(4):
        assert same(sent(cluster, params, step), alone(cluster, params, step))


@pytest.mark.parametrize("threads", [1, 2])
def test_an_exception_in_a_worker_ends_the_run(threads: int) -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if len(targets) == 7:
            raise ZeroDivisionError("7 samples")
        return F.cross_entropy(outputs, targets)

    problem = Problem(MODELS["mlp"](), loss)
    cluster = zeno.LocalCluster([Worker(i, problem, DATA, torch.arange(60), 5 + i, 0) for i in range(M)])
    torch.set_num_threads(threads)
    with pytest.raises(ZeroDivisionError, match="7 samples"):
        sent(cluster, problem.flat.clone(), 0)
    assert torch.get_num_threads() == threads


def test_workers_of_several_problems_raise() -> None:
    one, other = make("mlp"), make("mlp")
    with pytest.raises(ValueError, match=r"share one problem\. Found 2 problems"):
        zeno.LocalCluster([*one.workers, *other.workers])


def test_bf16_is_sent_as_float32_and_is_less_exact() -> None:
    exact, rough = make("mlp"), make("mlp", precision="bf16")
    params = exact.problem.flat.clone()
    for a, b in zip(sent(exact, params, 0), sent(rough, params, 0), strict=True):
        assert b.dtype == torch.float32
        assert 0 < (a - b).norm() < 0.05 * a.norm()


def test_what_faulty_workers_send_does_not_depend_on_who_arrives_first() -> None:
    def sent_by(cluster: zeno.Cluster) -> dict[int, Tensor | None]:
        faulty = zeno.Faulty(cluster, lambda step: dict.fromkeys([1, 3], zeno.Gaussian()), seed=0)
        return {reply.worker: reply.gradient for reply in faulty.gradients(params, {}, 0)}

    forwards = make("mlp")
    params = forwards.problem.flat.clone()
    first, second = sent_by(forwards), sent_by(FakeCluster(sent(forwards, params, 0)))  # which sends the last first
    assert all(torch.equal(first[i], second[i]) for i in range(M))  # type: ignore[arg-type]
