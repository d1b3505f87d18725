"""The server's displacement by local training, beside that of a plain loop of SGD."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zeno
from zeno.problem.local_training import LocalTraining
from zeno.server.core import Core
from zeno.server.samples import DatasetSamples, LoaderSamples
from zeno.server.step_oracle import StepOracle

INPUTS = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
TARGETS = INPUTS @ torch.tensor([[1.0], [2.0], [-1.0]])
LOCAL = LocalTraining(steps=4, lr=0.05)


def by_hand(model: nn.Module, batches: list[tuple[Tensor, Tensor]], lr: float) -> Tensor:
    """x - x' after one step of torch.optim.SGD for each batch."""
    model = copy.deepcopy(model)
    before = zeno.flatten(model.parameters()).clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for inputs, targets in batches:
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return before - zeno.flatten(model.parameters())


def core_of(rule: zeno.Rule, local: LocalTraining | None = LOCAL) -> Core:
    torch.manual_seed(0)
    samples = DatasetSamples(zeno.Dataset(INPUTS, TARGETS), torch.arange(400), seed=1)
    return Core(zeno.Problem(nn.Linear(3, 1), F.mse_loss), rule, samples, local_training=local)


def oracle_of(core: Core, step: int = 0) -> StepOracle:
    return StepOracle(core, "score", step, core.problem.flat.clone(), 1.0)


def test_the_displacement_is_that_of_plain_sgd() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    batches = [(INPUTS[i : i + 20], TARGETS[i : i + 20]) for i in (0, 20, 40, 60)]
    expected = by_hand(model, batches, 0.05)
    problem = zeno.Problem(model, F.mse_loss)
    found = LOCAL.displacement(problem, zeno.Batch(INPUTS[:80], TARGETS[:80]))
    torch.testing.assert_close(found, expected)


def test_each_half_of_the_server_trains_on_its_own_samples() -> None:
    core = core_of(zeno.ZenoAuto(samples=64))
    expected = []
    for half in (0, 1):
        batch = core.samples.take(4 * 32, "score", 7, half)
        parts = [batch.cut(slice(32 * i, 32 * i + 32)) for i in range(4)]
        assert all(isinstance(part, zeno.Batch) for part in parts)
        expected.append(by_hand(core.problem.model, [tuple(part) for part in parts], 0.05))  # type: ignore[arg-type,misc]
    x = core.problem.flat.clone()
    oracle = oracle_of(core, step=7)
    torch.testing.assert_close(oracle.half_gradients(), torch.stack(expected))
    torch.testing.assert_close(oracle.gradient(), torch.stack(expected).mean(dim=0))
    assert torch.equal(oracle_of(core, step=7).half_gradients(), oracle.half_gradients())
    assert not torch.equal(oracle_of(core, step=8).half_gradients(), oracle.half_gradients())
    assert torch.equal(oracle.x, x)


def test_a_sample_of_a_loader_stays_in_its_half() -> None:
    samples = LoaderSamples([(INPUTS, TARGETS)], torch.device("cpu"), zeno.ZenoAuto(), nested=False)
    taken: dict[int, set[tuple[float, ...]]] = {0: set(), 1: set()}
    for step in range(10):
        for half in (0, 1):
            batch = samples.take(4 * 32, "score", step, half)
            assert isinstance(batch, zeno.Batch)
            taken[half] |= {tuple(sample) for sample in batch.inputs.tolist()}
    assert not taken[0] & taken[1]
    assert len(taken[0]) + len(taken[1]) == 400


def test_without_local_training_gradients_are_gradients() -> None:
    found = oracle_of(core_of(zeno.ZenoAuto(), None)).half_gradients()
    trained = oracle_of(core_of(zeno.ZenoAuto(), LocalTraining(steps=1, lr=0.5))).half_gradients()
    torch.testing.assert_close(trained, 0.5 * found)


def test_rules_with_few_samples_train_too() -> None:
    assert oracle_of(core_of(zeno.Zeno(trim=1, batch_size=1))).gradient().isfinite().all()


def test_steps_and_learning_rate_are_checked() -> None:
    with pytest.raises(ValueError, match=r"needs at least one step.*Found steps=0 and lr=0.1"):
        LocalTraining(steps=0, lr=0.1)
    with pytest.raises(ValueError, match=r"a positive learning rate. Found steps=2 and lr=nan"):
        LocalTraining(steps=2, lr=float("nan"))
