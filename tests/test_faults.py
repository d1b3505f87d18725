"""Each fault by hand, and how they reach a cluster."""

from collections.abc import Iterator, Mapping
from types import TracebackType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import zeno
from zeno.cluster.cluster import NO_FAULTS
from zeno.worker import Worker

OWN = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
CORRECT = torch.tensor([[5.0, 6.0], [7.0, 8.0], [9.0, 10.0]])


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_label_flip_mirrors_the_labels() -> None:
    batch = zeno.Batch(torch.zeros(3, 1), torch.tensor([0, 3, 9]))
    assert zeno.LabelFlip().on_batch(batch, 10, rng()).targets.tolist() == [9, 6, 0]
    assert batch.targets.tolist() == [0, 3, 9]
    with pytest.raises(ValueError, match="class labels"):
        zeno.LabelFlip().on_batch(batch, None, rng())


def test_bit_flip_sends_minus_the_first_faulty_gradient_from_all() -> None:
    assert zeno.BitFlip().on_gradients(OWN, CORRECT, rng()).tolist() == [[-1.0, 2.0], [-1.0, 2.0]]


def test_sign_flip_sends_minus_the_own_gradient_scaled() -> None:
    assert zeno.SignFlip().on_gradients(OWN, CORRECT, rng()).tolist() == [[-1.0, 2.0], [-3.0, -4.0]]
    assert zeno.SignFlip(10.0).on_gradients(OWN, CORRECT, rng()).tolist() == [[-10.0, 20.0], [-30.0, -40.0]]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_faults_refuse_a_size_that_is_none(value: float) -> None:
    with pytest.raises(ValueError, match="SignFlip needs scale as a finite number above 0"):
        zeno.SignFlip(value)
    with pytest.raises(ValueError, match="Gaussian needs sigma as a finite number above 0"):
        zeno.Gaussian(value)


def test_gaussian_sends_noise_of_the_given_deviation() -> None:
    sent = zeno.Gaussian(sigma=200.0).on_gradients(torch.ones(2, 50_000), CORRECT, rng())
    assert sent.dtype == torch.float32
    assert sent.mean().item() == pytest.approx(0, abs=3)
    assert sent.std().item() == pytest.approx(200, rel=0.02)
    assert not torch.equal(sent[0], sent[1])


class Fixed(zeno.Cluster):
    """Three workers that send 1, 2 and nothing; remembers which faults reached their batches."""

    size = 3

    def gradients(
        self,
        params: Tensor,
        buffers: Mapping[str, Tensor],
        step: int,
        faults: Mapping[int, zeno.Fault] = NO_FAULTS,
        need: int = 1,
    ) -> Iterator[zeno.Reply]:
        self.faults = dict(faults)
        yield zeno.Reply(1, step, torch.full_like(params, 2.0))
        yield zeno.Reply(0, step, torch.full_like(params, 1.0))
        yield zeno.Reply(2, step, None, "died")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed = True


def replies(cluster: zeno.Cluster, step: int = 0) -> dict[int, float | None]:
    return {
        r.worker: None if r.gradient is None else r.gradient[0].item()
        for r in cluster.gradients(torch.zeros(2), {}, step)
    }


def test_faults_act_on_the_workers_they_are_given_and_on_no_other() -> None:
    inner = Fixed()
    cluster = zeno.Faulty(inner, zeno.SignFlip(3.0), who=lambda step: [step % 2, 2], seed=0)
    assert replies(cluster, step=0) == {1: 2.0, 0: -3.0, 2: None}
    assert replies(cluster, step=1) == {1: -6.0, 0: 1.0, 2: None}
    assert inner.faults == {1: zeno.SignFlip(3.0), 2: zeno.SignFlip(3.0)}


def test_all_workers_or_only_silent_ones_may_be_faulty() -> None:
    assert replies(zeno.Faulty(Fixed(), zeno.SignFlip(), lambda step: [0, 1, 2], 0)) == {1: -2.0, 0: -1.0, 2: None}
    assert replies(zeno.Faulty(Fixed(), zeno.SignFlip(), lambda step: [2], 0)) == {1: 2.0, 0: 1.0, 2: None}


def test_what_a_fault_draws_depends_on_the_seed_and_the_step() -> None:
    def sent(seed: int, step: int) -> float | None:
        return replies(zeno.Faulty(Fixed(), zeno.Gaussian(), lambda step: [0], seed), step)[0]

    assert sent(0, 0) == sent(0, 0)
    assert len({sent(0, 0), sent(0, 1), sent(1, 0)}) == 3


def test_workers_that_are_silent_or_send_other_sizes_are_passed_on_as_they_are() -> None:
    class Odd(Fixed):
        def gradients(
            self,
            params: Tensor,
            buffers: Mapping[str, Tensor],
            step: int,
            faults: Mapping[int, zeno.Fault] = NO_FAULTS,
            need: int = 1,
        ) -> Iterator[zeno.Reply]:
            yield zeno.Reply(0, step, torch.ones(5))
            yield zeno.Reply(1, step, torch.ones(2))

    assert replies(zeno.Faulty(Odd(), zeno.SignFlip(), lambda step: [0, 1, 2], 0)) == {0: 1.0, 1: -1.0}


def test_a_faulty_cluster_closes_the_one_inside() -> None:
    inner = Fixed()
    with zeno.Faulty(inner, zeno.SignFlip(), lambda step: [], 0):
        pass
    assert inner.closed


def test_label_flip_reaches_the_gradient_of_its_worker() -> None:
    problem = zeno.Problem(nn.Linear(2, 3))
    dataset = zeno.Dataset(torch.rand(30, 2), torch.arange(30) % 3, classes=3)
    workers = [Worker(i, problem, dataset, torch.arange(30), batch_size=5, seed=0) for i in range(2)]
    cluster = zeno.Faulty(zeno.LocalCluster(workers), zeno.LabelFlip(), lambda step: [1], seed=0)
    params = problem.flat.clone()
    sent = {r.worker: r.gradient for r in cluster.gradients(params, {}, step=4)}

    batch = workers[1].batch(4)
    flipped = zeno.Batch(batch.inputs, 2 - batch.targets)
    assert torch.equal(sent[0], problem.gradient(params, workers[0].batch(4), 0))  # type: ignore[arg-type]
    assert torch.equal(sent[1], problem.gradient(params, flipped, 0))  # type: ignore[arg-type]
