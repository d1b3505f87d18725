"""Norms, distances and sums of the candidates, where float32 and cancellation would get them wrong."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import zeno
from zeno.rules.linalg import passes
from zeno.rules.linalg.geometry import Geometry, squared_distances


def exact(rows: Tensor) -> Tensor:
    return torch.stack([(rows.double() - row.double()).square().sum(dim=1) for row in rows])


@pytest.mark.parametrize("d", [1, 3, 8191, 8192, 8193, 70_000])
@pytest.mark.parametrize("m", [1, 2, 16, 17, 40])
def test_products_are_those_of_float64(m: int, d: int) -> None:
    rows = torch.randn(m, d) + 1
    products = passes.gram(rows)
    torch.testing.assert_close(products, rows.double() @ rows.double().T, rtol=1e-5, atol=1e-3)
    assert torch.equal(products, products.T)
    centre = rows[0]
    around = passes.gram(rows, centre)
    torch.testing.assert_close(around, (rows - centre).double() @ (rows - centre).double().T, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("spread", [1.0, 1e-2, 1e-4, 1e-6])
def test_distances_keep_their_digits_where_candidates_nearly_agree(spread: float) -> None:
    torch.manual_seed(0)
    rows = torch.randn(1, 20_000) + spread * torch.randn(9, 20_000)
    distances = squared_distances(Geometry(rows).products[:-1, :-1])
    torch.testing.assert_close(distances, exact(rows), rtol=1e-4, atol=0)


def test_distances_keep_their_digits_beside_a_huge_row() -> None:
    torch.manual_seed(0)
    rows = torch.randn(1, 20_000) + 1e-4 * torch.randn(9, 20_000)
    rows[4] = 1e20
    distances = squared_distances(Geometry(rows).products[:-1, :-1])
    torch.testing.assert_close(distances, exact(rows), rtol=1e-4, atol=0)


def test_rows_that_are_equal_are_at_distance_zero() -> None:
    rows = torch.randn(1, 20_000).repeat(6, 1)
    assert (squared_distances(Geometry(rows).products[:-1, :-1]) == 0).all()


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-18, 1e18, 1e30, 1e38])
def test_products_neither_overflow_nor_vanish(scale: float) -> None:
    rows = (torch.rand(5, 300) * scale).float()
    torch.testing.assert_close(passes.squared_norms(rows), rows.double().square().sum(dim=1), rtol=1e-5, atol=0)
    distances = squared_distances(Geometry(rows).products[:-1, :-1])
    torch.testing.assert_close(distances, exact(rows), rtol=1e-3, atol=0)


def test_the_origin_is_one_of_the_points() -> None:
    torch.manual_seed(0)
    for rows in (torch.randn(5, 10), torch.randn(1, 10) + 1e-3 * torch.randn(5, 10)):  # around 0, and around a row
        points = squared_distances(Geometry(rows).products)
        torch.testing.assert_close(points[-1, :-1], rows.double().square().sum(dim=1), rtol=1e-5, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [0, 8191, 8192, 65_535, 65_536, 69_999])
def test_a_single_bad_number_is_found_anywhere(bad: float, where: int) -> None:
    tensor = torch.randn(4, 70_000)
    tensor[2, where] = bad
    assert Geometry(tensor).usable.tolist() == [True, True, False, True]
    by_products = Geometry(tensor)
    assert by_products.products.isfinite().all()
    assert by_products.usable.tolist() == [True, True, False, True]
    assert not passes.all_finite(tensor[2])
    assert passes.all_finite(tensor[1])
    assert not passes.all_finite(tensor[2].half())


def test_infinities_of_both_signs_do_not_cancel() -> None:
    tensor = torch.zeros(3, 10)
    tensor[1, 0], tensor[1, 1] = math.inf, -math.inf
    assert Geometry(tensor).usable.tolist() == [True, False, True]
    assert zeno.Mean()(tensor).update.tolist() == [0.0] * 10


def test_weighted_sums_leave_rows_of_weight_zero_alone() -> None:
    tensor = torch.arange(12.0).view(4, 3)
    tensor[1] = math.nan
    weights = torch.tensor([0.5, 0.0, 0.25, 0.25], dtype=torch.float64)
    assert passes.weighted_sum(tensor, weights).tolist() == pytest.approx([3.75, 4.75, 5.75])
    assert passes.weighted_sum(tensor, weights * 0).tolist() == [0.0] * 3
    assert passes.weighted_sum(tensor, -weights).tolist() == pytest.approx([-3.75, -4.75, -5.75])


def test_weights_that_float32_cannot_hold_still_weigh() -> None:
    tensor = torch.tensor([[1.0], [1e38], [1e-40]])
    weights = torch.tensor([0.5, 1e-42, 1e40], dtype=torch.float64)
    assert float(passes.weighted_sum(tensor, weights)) == pytest.approx(0.5 + 1e-4 + 1.0, rel=1e-3)


def test_sums_at_the_edge_of_float32_stay_inside() -> None:
    largest = torch.finfo(torch.float32).max
    assert zeno.Mean()(torch.full((7, 3), largest)).update.tolist() == [largest] * 3
    assert zeno.MultiKrum(faulty=0)(torch.full((7, 3), -largest)).update.tolist() == [-largest] * 3


def test_candidates_that_differ_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    gram = passes.gram

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(1)
        return gram(*args, **kwargs)

    monkeypatch.setattr(passes, "gram", counted)
    rows = torch.randn(9, 1000)
    zeno.Krum(faulty=2)(rows)
    assert len(calls) == 1
    rows[:4] = rows[0]  # four that agree: a second look, at these only
    zeno.Krum(faulty=2)(rows)
    assert len(calls) == 3


@pytest.mark.parametrize("rule", [zeno.Mean(), zeno.Median(), zeno.TrimmedMean(2), zeno.MeaMed(2), zeno.Phocas(2)])
def test_rules_by_coordinate_need_no_pass_to_find_that_all_rows_are_usable(
    rule: zeno.Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = torch.randn(9, 1000)
    with monkeypatch.context() as patch:
        patch.delattr(passes, "squared_norms")
        assert rule(rows).kept.all()
    rows[3, 7] = math.nan
    assert rule(rows).kept.tolist() == [worker != 3 for worker in range(9)]
