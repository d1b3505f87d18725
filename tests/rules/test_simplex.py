"""The nearest mixture, against all supports tried one by one; and even ones."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zeno.rules.linalg.simplex import Mixtures


def nearest_mixture(errors: Tensor) -> Tensor:
    return Mixtures(errors).nearest(torch.ones(len(errors), dtype=torch.bool))


def even_mixture(errors: Tensor, limit: float) -> Tensor | None:
    return Mixtures(errors).even(torch.ones(len(errors), dtype=torch.bool), limit)


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
    found = Mixtures(errors).nearest(among)
    assert not found[~among].any()
    assert found[among].tolist() == pytest.approx(nearest_mixture(errors[among]).tolist(), abs=1e-6)
    even, alone = Mixtures(errors).even(among, 1.0), even_mixture(errors[among], 1.0)
    assert (even is None) == (alone is None)
    if even is not None and alone is not None:
        assert not even[~among].any()
        assert torch.equal(even[among], alone)


# Even mixtures


def even(limit: float, *errors: list[float]) -> list[float] | None:
    found = even_mixture(torch.tensor(errors, dtype=torch.float64), limit)
    return None if found is None else found.tolist()


def test_even_mixtures_worked_out_by_hand() -> None:
    assert even(1.0, [1.0], [-1.0], [0.5]) == pytest.approx([1 / 3] * 3)
    # The mean of all is 2, squared 4; without the 7 it is 1/3.
    assert even(0.2, [1.0], [-1.0], [1.0], [7.0]) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    assert even(1e-6, [3.0], [-3.0], [8.0]) == [0.5, 0.5, 0]
    assert even(0.5, [1.0], [1.0]) is None, "neither is near, and leaving out one does not help"
    assert even(1.01, [1.0]) == [1.0]


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 8), st.integers(0, 2**32), st.floats(0.01, 4))
def test_an_even_mixture_is_within_the_limit_and_leaves_out_only_what_is_needed(
    n: int, seed: int, limit: float
) -> None:
    errors = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = even_mixture(errors, limit)
    if squared_distance(errors, torch.full((n,), 1 / n, dtype=torch.float64)) <= 0.999 * limit:
        assert found is not None
        assert bool((found > 0).all())
    if found is not None:
        assert squared_distance(errors, found) <= limit
        assert set(found.tolist()) <= {0.0, float(found.max())}
        assert float(found.sum()) == pytest.approx(1)


def test_huge_errors_that_cancel_are_left_out() -> None:
    rows = torch.randn(6, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    huge = 1e12 * torch.randn(100, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rows[0], rows[1] = huge, -huge + rows[1]
    found = even_mixture(rows, 50.0)
    assert found is not None
    assert found.tolist() == [0, 0, 0.25, 0.25, 0.25, 0.25]
