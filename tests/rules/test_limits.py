"""Numbers so large that their squares overflow, and loops that must end whatever the numbers are."""

import ast
import math
from pathlib import Path

import pytest
import torch

import zeno
from support.oracle import FakeOracle
from zeno.rules.linalg.geometry import Geometry

M, D, FAULTY = 11, 100, 2
RULES = [
    zeno.Median(),
    zeno.TrimmedMean(FAULTY),
    zeno.MeaMed(FAULTY),
    zeno.Phocas(FAULTY),
    zeno.Krum(FAULTY),
    zeno.MultiKrum(FAULTY),
    zeno.Bulyan(FAULTY),
    zeno.GeometricMedian(),
    zeno.CenteredClipping(),
    zeno.MDA(FAULTY),
    zeno.SMEA(FAULTY),
    zeno.CAF(FAULTY),
    zeno.CGE(FAULTY),
    zeno.SignGuard(),
    zeno.FLTrust(),
    zeno.ByGARS(),
    zeno.ZenoPP(),
    zeno.AFLGuard(),
    zeno.MoNNA(FAULTY),
    zeno.Zeno(FAULTY, score="first_order"),
    zeno.ZenoAuto(),
    zeno.chain(zeno.NNM(FAULTY), zeno.TrimmedMean(FAULTY)),
    zeno.chain(zeno.Clip(9.0), zeno.Mean()),
    zeno.chain(zeno.ARC(FAULTY), zeno.GeometricMedian()),
    zeno.chain(zeno.Bucketing(), zeno.CAF(FAULTY)),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("size", [1e100, 1e138, 1e145, 1e152, 1e153, 5e153, 1e155, 1e300])
@pytest.mark.parametrize("faulty", [1, 2])
def test_squares_that_overflow_move_no_update(rule: zeno.Rule, size: float, faulty: int) -> None:
    for seed in range(6):
        random = torch.Generator().manual_seed(seed)
        candidates = 1 + torch.randn(M, D, generator=random, dtype=torch.float64)
        candidates[:faulty] = size * torch.randn(1 + seed % faulty, D, generator=random, dtype=torch.float64)
        oracle = FakeOracle(None, torch.ones(D, dtype=torch.float64))
        update = rule(candidates, oracle).update
        assert float(update.norm()) < 3 * D**0.5  # 1.4 times the square root of D: a candidate of a good worker


@pytest.mark.parametrize("length", [1e139, 1e153, 1.3e154, 1.33e154, 1e200])
def test_caf_ends_for_numbers_of_any_size(length: float) -> None:
    torch.manual_seed(0)
    candidates = 1 + torch.randn(M, D, dtype=torch.float64)
    candidates[:3] = length / D**0.5
    candidates[0] *= -1
    assert zeno.CAF(3)(candidates).update.abs().max() < 10


def test_rows_are_usable_up_to_a_length_whose_sums_of_squares_are_finite() -> None:
    rows = torch.zeros(5, 4, dtype=torch.float64)
    rows[:, 1] = torch.tensor([1e139, 1e141, 1e154, -1e300, math.inf], dtype=torch.float64)
    assert Geometry(rows).usable.tolist() == [True, False, False, False, False]
    by_products = Geometry(rows)
    assert by_products.products.isfinite().all()
    assert by_products.usable.tolist() == [True, False, False, False, False]
    assert Geometry(torch.full((2, 9), torch.finfo(torch.float32).max)).usable.all()


def test_a_row_too_large_to_square_is_no_part_of_a_mean() -> None:
    candidates = torch.ones(3, 2, dtype=torch.float64)
    candidates[1] = 1e150
    assert zeno.Median()(candidates).update.tolist() == [1.0, 1.0]
    result = zeno.chain(zeno.Clip(9.0), zeno.Median())(candidates)
    assert result.kept.tolist() == [True, False, True]


def test_no_loop_of_a_rule_is_without_a_bound() -> None:
    files = list(Path(zeno.rules.__file__).parent.rglob("*.py"))
    assert len(files) > 40
    loops = [
        f"{file.name}:{node.lineno}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.While)
    ]
    assert loops == [], "use `for _ in range(...)`, and say what happens when it ends"


def test_one_huge_row_does_not_hide_which_rows_are_central() -> None:
    """The sum of all distances is that to the hugest row, whatever the others are."""
    good = torch.randn(8, 100, generator=torch.Generator().manual_seed(0))
    for huge in ((1e35, 1e17), (1e30, 1e12), (1e20, 1e3)):
        hostile = torch.stack([torch.full((100,), size) for size in huge])
        update = zeno.GeometricMedian()(torch.cat([hostile, good])).update
        assert float(update.norm()) < 2 * float(good.norm(dim=1).max())
