"""The weights that a Guard gives to ranks, from their sketches."""

import math

import pytest
import torch
from torch import Tensor, nn

import zeno
from zeno.rules.zeno_auto import Comparison, Memory
from zeno.server.distributed.lengths import KNOWN, Lengths
from zeno.server.distributed.own_gradient import OwnGradient
from zeno.server.distributed.weights import Agreement, weigh

K, M = 200, 4
TRUTH = torch.ones(K, dtype=torch.float64)


def noise(seed: int, size: float) -> Tensor:
    return size * torch.randn(K, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights_after(steps: int, ranks: "list[float]", trust: "list[float] | None" = None, turned: bool = False) -> Tensor:
    """With ranks that send so many times the true gradient; the last one turns around at the last step."""
    memory, agreement = Memory.new(M, K, 0, torch.zeros(0)), Agreement()
    found = torch.zeros(0)
    for step in range(steps):
        rows = torch.stack([factor * TRUTH + noise(10 * step + i, 0.5) for i, factor in enumerate(ranks)])
        if turned and step == steps - 1:
            rows[-1] *= -10
        halves = torch.stack([TRUTH + noise(10 * step + 8, 1.0), TRUTH + noise(10 * step + 9, 1.0)])
        compared = Comparison.of(memory, 0.98, rows, halves)
        found, memory = weigh(
            compared, torch.tensor([1.0] * M if trust is None else trust, dtype=torch.float64), agreement
        )
    return found


def test_good_ranks_have_equal_weights() -> None:
    assert weights_after(30, [1, 1, 1, 1]).tolist() == [0.25] * M + [0.0]


def test_a_bias_that_the_mean_over_steps_shows_costs_its_rank_the_weight() -> None:
    found = weights_after(30, [1, 1, 1, -1])
    assert float(found[3]) < 0.05
    assert float(found.sum()) == pytest.approx(1, abs=0.2)


def test_a_rank_that_turns_around_is_left_out_at_once() -> None:
    found = weights_after(30, [1, 1, 1, 1], turned=True)
    assert float(found[3]) < 0.02
    assert float(found[:3].sum()) > 0.5


def test_ranks_that_agree_have_equal_weights_even_if_the_trusted_samples_say_something_else() -> None:
    """As in a model that learns its training data by heart."""
    memory, agreement = Memory.new(M, K, 0, torch.zeros(0)), Agreement()
    for step in range(100):
        rows = torch.stack([0.3 * TRUTH + noise(10 * step + i, 0.5) for i in range(M)])
        halves = torch.stack([-0.2 * TRUTH + noise(10 * step + 8, 1.0), -0.2 * TRUTH + noise(10 * step + 9, 1.0)])
        compared = Comparison.of(memory, 0.98, rows, halves)
        found, memory = weigh(compared, torch.ones(M, dtype=torch.float64), agreement)
        assert found.tolist() == [0.25] * M + [0.0]


def test_weights_are_equal_if_the_own_gradient_says_nothing() -> None:
    rows = torch.stack([noise(i, 10.0**i) for i in range(M)])
    compared = Comparison.of(Memory.new(M, K, 0, torch.zeros(0)), 0.98, rows, torch.zeros(2, K, dtype=torch.float64))
    found, _ = weigh(compared, torch.ones(M, dtype=torch.float64), Agreement())
    assert found.tolist() == [0.25] * M + [0.0]


def test_the_own_gradient_takes_over_if_all_ranks_are_wrong_in_different_ways() -> None:
    found = weights_after(30, [-1, -3, -2, -5])
    assert float(found[:-1].max()) < 0.05
    assert float(found[-1]) > 0.5


def test_a_rank_that_is_not_finite_has_weight_0() -> None:
    found = weights_after(5, [1, 1, math.nan, 1])
    assert found.tolist() == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3, 0])


def test_weights_follow_the_trust_and_suspects_have_none() -> None:
    assert weights_after(5, [1, 1, 1, 1], [1, 1, 0, 0.5]).tolist() == pytest.approx([0.4, 0.4, 0, 0.2, 0])
    found = weights_after(30, [1, 1, -1, -1], [1, 1, 0, 1])
    assert float(found[2]) == 0


@pytest.mark.parametrize("length", [math.nan, math.inf, 20.0])
def test_a_bucket_is_unusual_if_it_is_not_finite_or_far_too_long(length: float) -> None:
    lengths = Lengths()
    assert lengths.is_usual(1000.0, (1, 5)), "of another bucket"
    assert all(lengths.is_usual(1.0 + step / 10, (0, 5)) for step in range(KNOWN))
    assert not lengths.is_usual(length, (0, 5))
    assert lengths.is_usual(9.0, (0, 5))


def test_the_own_gradient_has_dropout_and_its_judge_has_none() -> None:
    model = nn.Sequential(nn.Dropout(1.0), nn.Linear(2, 1, bias=False))  # with dropout, no input is left
    model[0].eval()
    data = [(torch.arange(32.0).view(16, 2), torch.ones(16, 1))]
    own, judge = OwnGradient(model, nn.functional.mse_loss, data, zeno.ZenoAuto(samples=4)).halves(0)
    assert own.tolist() == [0.0, 0.0]
    assert judge.abs().min() > 0
    assert [module.training for module in model] == [False, True], "as it was"
