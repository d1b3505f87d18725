"""Every rule against an independent float64 reference, and what must hold for all of them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import zeno
from zeno.rules import Rule

Array = npt.NDArray[np.float64]
Reference = Callable[[Array, Array, int], tuple[Array, set[int]]]
"""(usable rows [n, d], their descents [n], how many of them to bear) -> (update [d], positions that were kept)."""


def reference_mean(rows: Array, descents: Array, bear: int) -> tuple[Array, set[int]]:
    return rows.mean(axis=0), set(range(len(rows)))


def reference_median(rows: Array, descents: Array, bear: int) -> tuple[Array, set[int]]:
    return np.median(rows, axis=0), set(range(len(rows)))


def reference_trimmed_mean(rows: Array, descents: Array, bear: int) -> tuple[Array, set[int]]:
    columns = [sorted(column)[bear : len(rows) - bear] for column in rows.T]
    return np.array([sum(column) / len(column) for column in columns]), set(range(len(rows)))


def reference_krum(rows: Array, descents: Array, bear: int) -> tuple[Array, set[int]]:
    sums = []
    for i, row in enumerate(rows):
        others = sorted(float(((row - other) ** 2).sum()) for j, other in enumerate(rows) if j != i)
        sums.append(sum(others[: len(rows) - bear - 2]))
    best = sums.index(min(sums))  # index: the lower row wins a tie
    return rows[best], {best}


def reference_zeno(rows: Array, descents: Array, bear: int) -> tuple[Array, set[int]]:
    scores = [descents[i] - 5e-4 * float((row**2).sum()) for i, row in enumerate(rows)]
    ranked = sorted(range(len(rows)), key=lambda i: (-scores[i], i))[: len(rows) - bear]
    return rows[ranked].mean(axis=0), set(ranked)


@dataclass(frozen=True)
class Case:
    make: Callable[[int], Rule]  # how many to bear -> rule
    most: Callable[[int], int]  # m -> how many it can be told to bear; below 0: not this m
    reference: Reference
    lowers: bool = True  # an unusable row uses up one of those to bear


CASES = {
    "mean": Case(lambda b: zeno.Mean(), lambda m: m - 1, reference_mean, lowers=False),
    "median": Case(lambda b: zeno.Median(), lambda m: m - 1, reference_median, lowers=False),
    "trimmed_mean": Case(zeno.TrimmedMean, lambda m: (m - 1) // 2, reference_trimmed_mean),
    "krum": Case(zeno.Krum, lambda m: (m - 3) // 2, reference_krum),
    "zeno": Case(zeno.Zeno, lambda m: m - 1, reference_zeno),
}


def test_every_rule_has_a_reference() -> None:
    assert set(CASES) == set(zeno.RULES)


@dataclass(frozen=True)
class Example:
    candidates: Tensor  # [m, d]
    descents: Tensor  # [m]
    bear: int
    unusable: list[int]


@st.composite
def examples(draw: st.DrawFn, case: Case) -> Example:
    m = draw(st.integers(1, 9).filter(lambda m: case.most(m) >= 0))
    d = draw(st.integers(1, 4))
    scale = 2.0 ** draw(st.integers(-66, 66))  # 1e-20 to 1e20, in powers of two, so that ties stay ties
    # Few distinct values, so that ties are common.
    values = draw(st.lists(st.integers(-3, 3), min_size=m * d, max_size=m * d))
    descents = draw(st.lists(st.integers(-2, 2), min_size=m, max_size=m))
    bear = draw(st.integers(0, case.most(m)))
    unusable = draw(st.lists(st.integers(0, m - 1), max_size=bear, unique=True))
    candidates = torch.tensor(values, dtype=torch.float32).view(m, d) * scale
    for row in unusable:
        candidates[row, draw(st.integers(0, d - 1))] = draw(st.sampled_from([math.nan, math.inf, -math.inf]))
    return Example(candidates, torch.tensor(descents, dtype=torch.float64) * max(1.0, scale**2), bear, unusable)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_rules_equal_their_float64_references(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    example = data.draw(examples(case))
    before = example.candidates.clone()

    result = case.make(example.bear)(example.candidates, lambda candidates: example.descents)

    usable = [i for i in range(len(before)) if i not in example.unusable]
    bear = example.bear - len(example.unusable) if case.lowers else example.bear
    rows = before[usable].double().numpy()
    update, kept = case.reference(rows, example.descents[usable].double().numpy(), bear)
    scale = float(np.abs(rows).max()) or 1.0
    np.testing.assert_allclose(result.update.double().numpy() / scale, update / scale, atol=1e-6)
    assert result.update.dtype == torch.float32
    assert set(result.kept.nonzero().flatten().tolist()) == {usable[i] for i in kept}
    assert torch.equal(example.candidates.nan_to_num(7), before.nan_to_num(7)), "the candidates were written to"
    if result.scores is not None:
        assert (result.scores[example.unusable] == -math.inf).all()
        worst_kept = result.scores[result.kept].min()
        assert (result.scores[~result.kept] <= worst_kept).all()


@pytest.mark.parametrize("name", CASES)
def test_results_do_not_depend_on_the_order_of_the_workers(name: str) -> None:
    candidates, descents = torch.randn(9, 5), torch.randn(9)
    order = torch.randperm(9)
    rule = CASES[name].make(3)
    one = rule(candidates, lambda c: descents)
    other = rule(candidates[order], lambda c: descents[order])
    torch.testing.assert_close(one.update, other.update)
    assert torch.equal(one.kept[order], other.kept)


@pytest.mark.parametrize("name", CASES)
def test_rules_refuse_what_is_not_a_matrix_of_floats(name: str) -> None:
    rule = CASES[name].make(0)
    for wrong in (torch.zeros(5), torch.zeros(5, 2, dtype=torch.int64), torch.zeros(0, 2), torch.zeros(5, 2, 2)):
        with pytest.raises(ValueError, match=r"\[workers, parameters\]"):
            rule(wrong, lambda c: torch.zeros(len(c)))


@pytest.mark.parametrize("name", CASES)
def test_more_unusable_rows_than_the_rule_bears_make_no_update(name: str) -> None:
    case = CASES[name]
    candidates = torch.ones(7, 3)
    candidates[: 7 if not case.lowers else 3] = math.nan
    with pytest.raises(zeno.TooFewUsable, match="usable candidates"):
        case.make(2)(candidates, lambda c: torch.zeros(7))


@pytest.mark.parametrize("name", CASES)
def test_rules_are_frozen_dataclasses_with_equality(name: str) -> None:
    rule = CASES[name].make(2)
    assert rule == CASES[name].make(2)
    for parameter in fields(rule):  # type: ignore[arg-type]
        with pytest.raises(AttributeError):
            setattr(rule, parameter.name, 1)


@pytest.mark.parametrize("name", ["krum", "zeno"])
def test_one_huge_row_is_as_good_as_none_for_a_rule_that_ranks(name: str) -> None:
    candidates = torch.tensor([[1.0, 2.0], [1.5, 2.5], [2.0, 1.0], [1.0, 1.0], [1e38, 1e38]])
    without = candidates.clone()
    without[4] = math.nan
    one = CASES[name].make(1)(candidates, lambda c: torch.ones(5))
    other = CASES[name].make(1)(without, lambda c: torch.ones(5))
    assert torch.equal(one.update, other.update)
    assert torch.equal(one.kept, other.kept)


def test_krum_never_picks_a_row_that_is_not_finite_even_where_all_distances_overflow() -> None:
    candidates = 1e200 * torch.arange(7, dtype=torch.float64)[:, None]
    candidates[0] = math.nan
    assert zeno.Krum(faulty=1)(candidates).kept.tolist() == [i == 1 for i in range(7)]


def test_means_are_worked_out_by_hand() -> None:
    candidates = torch.tensor([[1.0, 0.0], [2.0, 8.0], [6.0, 4.0], [11.0, -3.0]])
    assert zeno.Mean()(candidates).update.tolist() == [5.0, 2.25]
    assert zeno.TrimmedMean(trim=1)(candidates).update.tolist() == [4.0, 2.0]  # of 2, 6 and of 0, 4


def test_median_of_an_even_number_is_the_mean_of_the_two_middle_values() -> None:
    result = zeno.Median()(torch.tensor([[1.0, 9.0], [2.0, 0.0], [4.0, 5.0], [100.0, 7.0]]))
    assert result.update.tolist() == [3.0, 6.0]


def test_medians_of_huge_values_do_not_overflow() -> None:
    assert zeno.Median()(torch.full((2, 1), 3e38)).update.tolist() == [torch.tensor(3e38).item()]
    assert zeno.Mean()(torch.full((4, 1), 3e38)).update.isfinite().all()


def test_krum_follows_faulty_workers_that_agree_while_good_ones_are_spread_out() -> None:
    # m = 7, faulty = 2: the 3 nearest others. -1: 0 + 0 + 1 = 1; the best of the good, 0: 1 + 1 + 1 = 3.
    result = zeno.Krum(faulty=2)(torch.tensor([[0.0], [2.0], [4.0], [6.0], [-1.0], [-1.0], [-1.0]]))
    assert result.kept.tolist() == [False, False, False, False, True, False, False]


def test_krum_scores_are_worked_out_by_hand() -> None:
    # m = 5, faulty = 1: the 2 nearest others. 0: 1 + 4, 1: 1 + 1, 2: 1 + 4, 5: 9 + 16, 100: 95^2 + 98^2.
    result = zeno.Krum(faulty=1)(torch.tensor([[0.0], [1.0], [2.0], [5.0], [100.0]]))
    assert result.scores is not None
    assert result.scores.tolist() == [-5.0, -2.0, -5.0, -25.0, -(95.0**2 + 98.0**2)]
    assert result.update.tolist() == [1.0]


def test_krum_sees_differences_late_in_training() -> None:
    # Candidates that agree in five digits: a float32 Gram matrix cannot rank them.
    torch.manual_seed(0)
    candidates = 1 + 1e-5 * torch.randn(7, 20_000)
    candidates[3] = candidates.double().mean(dim=0).float()
    assert zeno.Krum(faulty=2)(candidates).kept.tolist() == [i == 3 for i in range(7)]


@pytest.mark.parametrize(("m", "faulty"), [(1, 0), (2, 0), (4, 1), (20, 9), (20, 12)])
def test_krum_refuses_more_faulty_than_it_bears(m: int, faulty: int) -> None:
    with pytest.raises(ValueError, match=rf"more than 2 \* faulty \+ 2 candidates. Found {m} with faulty={faulty}"):
        zeno.Krum(faulty=faulty)(torch.zeros(m, 2))


def test_zeno_keeps_the_candidates_that_lower_the_loss() -> None:
    # f_r(x) = x^2 / 2 at x = 1 with lr = 1: descent(u) = 1/2 - (1 - u)^2 / 2, best at u = 1.
    candidates = torch.tensor([[-1.0], [1.0], [0.5], [-10.0], [1.5]])
    result = zeno.Zeno(trim=3, rho=0.01)(candidates, lambda c: 0.5 - (1 - c[:, 0]) ** 2 / 2)
    assert result.scores is not None
    assert result.scores.tolist() == pytest.approx([-1.51, 0.49, 0.3725, -61.0, 0.3525])
    assert result.kept.tolist() == [False, True, True, False, False]
    assert result.update.tolist() == [0.75]


def test_zeno_survives_all_but_one_faulty_worker() -> None:
    good = torch.tensor([[1.0, 2.0]])
    candidates = torch.cat([-5 * good.expand(19, 2), good])
    assert zeno.Zeno(trim=19)(candidates, lambda c: c @ good[0]).update.tolist() == [1.0, 2.0]


def test_zeno_drops_large_candidates_through_rho() -> None:
    candidates = torch.tensor([[1.0], [100.0]])
    assert zeno.Zeno(trim=1, rho=1e-3)(candidates, lambda c: torch.tensor([1.0, 2.0])).kept.tolist() == [True, False]
    assert zeno.Zeno(trim=1, rho=0)(candidates, lambda c: torch.tensor([1.0, 2.0])).kept.tolist() == [False, True]


def test_a_score_of_nan_ranks_last() -> None:
    candidates = torch.ones(4, 2)
    descents = torch.tensor([math.nan, -1e30, math.nan, -2e30])
    assert zeno.Zeno(trim=2)(candidates, lambda c: descents).kept.tolist() == [False, True, False, True]
    with pytest.raises(zeno.TooFewUsable):
        zeno.Zeno(trim=1)(candidates, lambda c: descents)


def test_a_candidate_that_is_not_finite_never_wins_whatever_its_descent() -> None:
    candidates = torch.tensor([[math.inf], [1.0], [math.nan], [2.0]])
    descents = torch.tensor([1e30, 0.0, math.inf, 0.0])
    result = zeno.Zeno(trim=2)(candidates, lambda c: descents)
    assert result.update.tolist() == [1.5]


@pytest.mark.parametrize("m", [4, 100])  # an unstable sort happens to keep the order of a few
def test_zeno_breaks_ties_by_the_lower_row(m: int) -> None:
    result = zeno.Zeno(trim=m // 2, rho=0)(torch.arange(m)[:, None].float(), lambda c: torch.zeros(m))
    assert result.kept.tolist() == [i < m // 2 for i in range(m)]


@pytest.mark.parametrize("trim", [-1, 20, 25, 1.5])
def test_zeno_refuses_a_trim_outside_of_0_to_m_minus_1(trim: float) -> None:
    with pytest.raises(ValueError, match="trim"):
        zeno.Zeno(trim=trim)(torch.zeros(20, 2), lambda c: torch.zeros(20))  # type: ignore[arg-type]


@pytest.mark.parametrize("rho", [-1e-9, math.nan, math.inf])
def test_zeno_refuses_a_rho_that_is_no_penalty(rho: float) -> None:
    with pytest.raises(ValueError, match="rho"):
        zeno.Zeno(trim=1, rho=rho)


def test_zeno_refuses_to_work_without_descent() -> None:
    with pytest.raises(ValueError, match="needs descent"):
        zeno.Zeno(trim=1)(torch.zeros(3, 2))
    with pytest.raises(ValueError, match="one descent for each of the 3"):
        zeno.Zeno(trim=1)(torch.zeros(3, 2), lambda c: torch.zeros(2))


def test_trimmed_mean_refuses_to_trim_everything() -> None:
    with pytest.raises(ValueError, match=r"more than 2 \* trim candidates. Found 4 with trim=2"):
        zeno.TrimmedMean(trim=2)(torch.zeros(4, 1))
