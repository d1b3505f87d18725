"""The nearest mixture, against all supports tried one by one."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zeno.rules.linalg.simplex import Mixtures


def nearest_mixture(errors: Tensor) -> Tensor:
    return Mixtures(errors @ errors.T).nearest(torch.ones(len(errors), dtype=torch.bool))


def squared_distance(errors: Tensor, weights: Tensor) -> float:
    return float((weights @ errors).square().sum())


def slow_reference(errors: Tensor) -> float:
    """The lowest squared distance over all supports, each solved by least squares."""
    n, products, best = len(errors), errors @ errors.T, float("inf")
    for size in range(1, n + 1):
        for support in map(list, itertools.combinations(range(n), size)):
            system = torch.ones(size + 1, size + 1, dtype=torch.float64)
            system[:size, :size], system[size, size] = products[support][:, support], 0
            right = torch.zeros(size + 1, dtype=torch.float64)
            right[size] = 1
            weights = torch.zeros(n, dtype=torch.float64)
            weights[support] = torch.linalg.lstsq(system, right, driver="gelsd").solution[:size]
            if bool((weights >= 0).all()) and abs(float(weights.sum()) - 1) < 1e-6:
                best = min(best, squared_distance(errors, weights))
    return best


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 6), st.integers(1, 8), st.integers(0, 2**32), st.sampled_from([0.0, 0.5, 3.0]))
def test_it_is_the_minimum(n: int, k: int, seed: int, spread: float) -> None:
    rng = torch.Generator().manual_seed(seed)
    errors = torch.randn(n, k, generator=rng, dtype=torch.float64)
    errors *= torch.exp(spread * torch.randn(n, 1, generator=rng, dtype=torch.float64))
    weights = nearest_mixture(errors)
    assert (weights >= 0).all()
    assert float(weights.sum()) == pytest.approx(1)
    lowest, size = slow_reference(errors), float(errors.square().sum(dim=1).max())
    assert squared_distance(errors, weights) <= lowest + 1e-7 * (lowest + 1e-3 * size)


def mixture(*errors: list[float]) -> list[float]:
    weights: list[float] = nearest_mixture(torch.tensor(errors, dtype=torch.float64)).tolist()
    return weights


def test_mixtures_worked_out_by_hand() -> None:
    # Errors 1 and -3: 3/4 of the first and 1/4 of the second cancel.
    assert mixture([1.0], [-3.0]) == pytest.approx([0.75, 0.25])
    # Orthogonal errors of squares 1, 4 and 16 are weighted by their inverses, 16 : 4 : 1.
    assert mixture([1.0, 0, 0], [0, 2.0, 0], [0, 0, 4.0]) == pytest.approx([16 / 21, 4 / 21, 1 / 21])
    assert mixture([1.0, 0.0], [2.0, 0.0]) == [1.0, 0.0]


def test_copies_share_their_weight() -> None:
    found = mixture([1.0, 1.0], [1.0, 1.0], [-1.0, 1.0], [1.0, 1.0])
    assert found == pytest.approx([1 / 6, 1 / 6, 1 / 2, 1 / 6], abs=1e-6)
    assert mixture([0.0], [0.0], [0.0]) == pytest.approx([1 / 3] * 3)


def test_huge_errors_that_cancel_get_no_weight() -> None:
    """Only rounding errors would be left of them: 1e16 + 1 - 1e16 is not 1."""
    rows = torch.randn(6, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    huge = 1e8 * torch.randn(100, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rows[0], rows[1] = huge, -huge + rows[1]
    found = nearest_mixture(rows)
    assert float(found[:2].sum()) < 1e-4
    rows[0] *= 1e100
    found = nearest_mixture(rows)
    assert float(found[:2].sum()) < 1e-4
    assert found.isfinite().all()


@pytest.mark.parametrize("n", [20, 200])
def test_many_columns_are_optimal_by_the_conditions_of_karush_kuhn_and_tucker(n: int) -> None:
    errors = torch.randn(n, n // 2, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) + 0.3
    products = errors @ errors.T
    weights = nearest_mixture(errors)
    gradient = products @ weights
    level = float(weights @ gradient)
    assert 0 < int((weights > 0).sum()) < n
    assert float(gradient.min()) > level - 1e-6 * float(products.max())
    assert gradient[weights > 0].tolist() == pytest.approx([level] * int((weights > 0).sum()), abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 8), st.integers(0, 2**32))
def test_mixtures_of_some_are_those_of_a_problem_of_their_own(n: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    errors, among = torch.randn(n, 5, generator=rng, dtype=torch.float64), torch.rand(n, generator=rng) < 0.7
    among[0] = True
    found = Mixtures(errors @ errors.T).nearest(among)
    assert not found[~among].any()
    assert found[among].tolist() == pytest.approx(nearest_mixture(errors[among]).tolist(), abs=1e-6)
