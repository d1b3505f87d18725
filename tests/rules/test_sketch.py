"""Sketches keep inner products, see what is not finite, and are the same however they are computed."""

import math

import numpy as np
import pytest
import torch

from zeno.rules.linalg.sketch import Signs, sketch


def test_a_sketch_adds_up_every_kth_number_with_its_sign() -> None:
    rows = torch.arange(1.0, 201.0).view(2, 100)
    signs = Signs(5).next(100).numpy()
    expected = np.zeros((2, 64))
    for j in range(100):
        expected[:, j % 64] += signs[j] * rows[:, j].numpy()
    np.testing.assert_allclose(sketch(rows, 64, 5).numpy(), expected)
    assert set(signs.tolist()) == {-1.0, 1.0}


def test_signs_do_not_depend_on_the_pieces_in_which_they_are_drawn() -> None:
    pieces = Signs(3)
    found = torch.cat([pieces.next(128), pieces.next(64), pieces.next(64)])
    assert torch.equal(found, Signs(3).next(256))
    assert not torch.equal(found, Signs(4).next(256))
    assert abs(float(Signs(0).next(100_000).mean())) < 0.02


def test_a_vector_that_is_no_longer_than_its_sketch_keeps_all_products() -> None:
    rows = torch.randn(4, 50, dtype=torch.float64)
    found = sketch(rows, 50, 1)
    torch.testing.assert_close(found @ found.T, rows @ rows.T)


@pytest.mark.parametrize("kind", ["independent", "outer product"])
def test_inner_products_are_kept_within_one_over_the_root_of_k(kind: str) -> None:
    rng, k = torch.Generator().manual_seed(0), 1024
    if kind == "outer product":  # as gradients of dense layers: with one sign per block, errors would add up
        left, right = torch.randn(2, 64, 1, generator=rng), torch.randn(2, 1, k, generator=rng)
        a, b = (left * right).flatten(1).double()
    else:
        a, b = torch.randn(2, 64 * k, generator=rng).double()
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
