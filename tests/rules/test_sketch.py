"""Sketches keep inner products, see what is not finite, and are the same however they are computed."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from zeno.rules.linalg.sketch import Signs, Sketch, sketch


def signs(seed: int, stretch: int = 100) -> Signs:
    return Signs(seed, stretch, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("n", [1, 2])
def test_a_sketch_adds_up_every_kth_number_with_its_sign(n: int) -> None:
    d, k = 300_000, 60_000
    rows = torch.randn(n, d, dtype=torch.float64)
    found = Sketch(n, k, 5, rows)
    for start, stop in [(200_000, d), (0, 7), (7, 200_000)]:  # in any order
        found.add(rows[:, start:stop], start)
    stretch = found.signs.stretch
    assert stretch == 120_000
    ends = [0, stretch, 2 * stretch, d]
    of = torch.cat([found.signs.at(start, stop) for start, stop in pairwise(ends)]).numpy()
    expected = np.zeros((n, k))
    for row in range(n):
        np.add.at(expected[row], np.arange(d) % k, of * rows[row].numpy())
    np.testing.assert_allclose(found.sums().numpy(), expected)
    torch.testing.assert_close(sketch(rows, k, 5), found.sums())
    assert set(of.tolist()) == {-1.0, 1.0}


def test_signs_are_random_and_the_same_for_the_same_seed() -> None:
    found = signs(3).at(1000, 1100)
    parts = signs(3)
    assert torch.equal(found, torch.cat([parts.at(1000, 1040), parts.at(1040, 1100)]))
    assert not torch.equal(found, signs(4).at(1000, 1100)), "by seed"
    assert not torch.equal(found, signs(3).at(1100, 1200)), "by stretch"
    assert abs(float(signs(0, 100_000).at(0, 100_000).mean())) < 0.02


def test_a_vector_that_is_no_longer_than_its_sketch_keeps_all_products() -> None:
    rows = torch.randn(4, 50, dtype=torch.float64)
    found = sketch(rows, 50, 1)
    torch.testing.assert_close(found @ found.T, rows @ rows.T)


@pytest.mark.parametrize("kind", ["independent", "outer product"])
def test_inner_products_are_kept_within_one_over_the_root_of_k(kind: str) -> None:
    rng, k = torch.Generator().manual_seed(0), 1024
    if kind == "outer product":  # as gradients of dense layers: with one sign per block, errors would add up
        left, right = torch.randn(2, 512, 1, generator=rng), torch.randn(2, 1, k, generator=rng)
        a, b = (left * right).flatten(1).double()
    else:
        a, b = torch.randn(2, 512 * k, generator=rng).double()
    b = b + a  # so that they have something in common
    rows, exact, scale = torch.stack([a, b]), float(a @ b), float(a.norm() * b.norm())
    errors = []
    for seed in range(100):
        one, other = sketch(rows, k, seed)
        errors.append((float(one @ other) - exact) / scale)
    assert np.sqrt(np.mean(np.square(errors))) < 2 / math.sqrt(k)
    assert abs(np.mean(errors)) < 4 / math.sqrt(100 * k), "they are right on average"


def test_a_row_that_is_not_finite_has_a_sketch_that_is_not_and_leaves_the_others_alone() -> None:
    rows = torch.randn(4, 300)
    clean = sketch(rows, 64, 2)
    rows[1, 7], rows[3, 299] = math.nan, -math.inf
    found = sketch(rows, 64, 2)
    assert found.isfinite().all(dim=1).tolist() == [True, False, True, False]
    assert torch.equal(found[[0, 2]], clean[[0, 2]])
    assert sketch(rows[:1].bfloat16(), 64, 2).dtype == torch.float32
