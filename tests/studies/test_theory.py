"""The theorem itself, with the real rule, on problems whose constants are known by enumeration.

    .venv/bin/python tests/test_theory.py        draws docs/theory.png from the same measurements

The worst fault of a case is searched for in many cheap draws, by a stand-in that sorts all of them at once. What counts
is then measured with zeno.Zeno on fresh draws. Means have limits that are wrong, in all cases of a test together, with
a probability of at most ALPHA, as far as means of so many draws are normal.

Shapes: n samples, k draws, m workers, d parameters.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import zeno
from support.oracle import FakeOracle
from zeno.studies import theory
from zeno.studies.theory import Assumptions, Setting

Array = npt.NDArray[np.float64]

ALPHA = 1e-3
DRAWS = 60
PILOT = 100
DOCS = Path(__file__).parent.parent.parent / "docs"


@dataclass(frozen=True, eq=False)
class Problem:
    """The loss on each of n samples, all equally likely, and a point to start from."""

    losses: Callable[[Array], Array]  # [..., d] -> [..., n]
    gradients: Callable[[Array], Array]  # [d] -> [n, d]
    x: Array  # [d]
    smoothness: float
    curvature: float
    curvature_gap: float
    flattest: Array  # [d]: the direction in which the loss bends least
    batch_size: int = 2  # of a worker

    def loss(self, points: Array) -> Array:
        return np.asarray(self.losses(points).mean(axis=-1))

    def gradient(self, x: Array) -> Array:
        return np.asarray(self.gradients(x).mean(axis=0))

    @property
    def squared_gradient(self) -> float:
        return float(np.square(self.gradient(self.x)).sum())

    def assumptions(self, own: int | None) -> Assumptions:
        """All constants at x, where the server scores on `own` samples; None: on all."""
        of_one = float(np.square(self.gradients(self.x) - self.gradient(self.x)).sum(axis=1).mean())
        variance = of_one / self.batch_size
        return Assumptions(
            smoothness=self.smoothness,
            curvature=self.curvature,
            variance=variance,
            second_moment=variance + self.squared_gradient,
            own_variance=None if own is None else of_one / own,
            curvature_gap=self.curvature_gap,
        )

    def drawn(self, rng: np.random.Generator, size: int, shape: tuple[int, ...]) -> Array:
        """The shares [..., n] of the samples in batches of this size."""
        n = len(self.gradients(self.x))
        return np.asarray(rng.multinomial(size, np.full(n, 1 / n), size=shape) / size)

    def worst_of_parts(self, parts: list[slice], own: int | None) -> Assumptions:
        """As `assumptions`, where each worker draws from a part of the samples: V and G of the worst worker."""
        of_parts = [self.gradients(self.x)[part] for part in parts]
        variances = [np.square(one - one.mean(axis=0)).sum(axis=1).mean() / self.batch_size for one in of_parts]
        moments = [v + np.square(one.mean(axis=0)).sum() for v, one in zip(variances, of_parts, strict=True)]
        known = self.assumptions(own)
        return replace(known, variance=float(max(variances)), second_moment=float(max(moments)))


def quadratic(bends: list[float], x: list[float], noise: float = 1.0) -> Problem:
    """f(x; z) = (x - z)' A (x - z) / 2 with z at the corners of a cube, so F(x) = x' A x / 2 and a constant."""
    a = np.array(bends)
    corners = noise * np.array(np.meshgrid(*[[-1.0, 1.0]] * len(bends))).reshape(len(bends), -1).T  # [n, d]
    return Problem(
        losses=lambda points: np.asarray((np.square(points[..., None, :] - corners) * a).sum(axis=-1) / 2),
        gradients=lambda x: np.asarray((x - corners) * a),
        x=np.array(x),
        smoothness=max(bends),
        curvature=min(bends),
        curvature_gap=0.0,
        flattest=np.eye(len(bends))[int(np.argmin(a))],
    )


def logistic(x: list[float] | None = None, n: int = 32, flipped: float = 0.2) -> Problem:
    """log(1 + exp(-y <a, x>)), with some labels wrong, so that no x fits all samples."""
    rng = np.random.default_rng(0)
    features = np.c_[rng.standard_normal((n, 2)), np.ones(n)]
    labels = np.sign(features @ [2.0, -1.0, 0.5]) * np.where(rng.random(n) < flipped, -1, 1)
    rows = features * labels[:, None]  # [n, d]

    def gradients(x: Array) -> Array:
        return np.asarray(-rows / (1 + np.exp(rows @ x))[:, None])

    bend = float(np.square(rows).sum(axis=1).max()) / 4  # of a single sample, not of the mean
    return Problem(
        losses=lambda points: np.asarray(np.logaddexp(0, -(points @ rows.T))),
        gradients=gradients,
        x=np.array([-0.5, 0.5, 0.0] if x is None else x),
        smoothness=bend,
        curvature=0.0,
        curvature_gap=bend,
        flattest=np.linalg.eigh(rows.T @ rows)[1][:, 0],
    )


PROBLEMS = {
    "quadratic": quadratic([1.0, 0.3, 0.05], [1.0, -2.0, 3.0]),
    "saddle": quadratic([1.0, 0.5, -0.6], [1.0, 2.0, 0.0]),
    "logistic": logistic(),
}


@dataclass(frozen=True, eq=False)
class Case:
    """What the faulty workers know: everything except the samples the server will draw."""

    problem: Problem
    setting: Setting
    own: int | None = None  # n_r; None: the server scores on all samples
    parts: tuple[slice, ...] = ()  # the samples of each worker, where they are disjoint

    def changes(self, updates: Array) -> Array:
        """F(x - lr u) - F(x): [..., d] -> [...]."""
        x = self.problem.x
        return np.asarray(self.problem.loss(x - self.setting.lr * updates) - self.problem.loss(x))

    def expected_scores(self, candidates: Array) -> Array:
        return np.asarray(-self.changes(candidates) - self.setting.rho * np.square(candidates).sum(axis=-1))


FaultOn = Callable[[Case, Array], Array]
"""The case and the good candidates [k, m - q, d] -> one faulty candidate [k, d], which the colluding share."""


def scaled(scale: float) -> FaultOn:
    """The mean of the good candidates, reversed or far too long."""
    return lambda case, good: np.asarray(scale * good.mean(axis=1))


def wrong_labels(case: Case, good: Array) -> Array:
    """The gradient of both kinds of problem with flipped labels or targets."""
    return np.broadcast_to(-case.problem.gradient(-case.problem.x), good[:, 0].shape)


def pushed(case: Case, good: Array) -> Array:
    """The best good candidate, pushed uphill as far as it still beats one of the good ones by its expected score."""
    scores = case.expected_scores(good)  # [k, m - q]
    at = np.arange(len(good))
    best, least = good[at, scores.argmax(axis=1)], scores.min(axis=1)
    low, high = np.zeros(len(good)), np.full(len(good), 1e3)
    uphill = case.problem.gradient(case.problem.x)
    for _ in range(25):
        middle = (low + high) / 2
        fine = case.expected_scores(best - middle[:, None] * uphill) >= least
        low, high = np.where(fine, middle, low), np.where(fine, high, middle)
    return np.asarray(best - low[:, None] * uphill)


FAULTS: dict[str, FaultOn] = {
    **{f"x {scale:g}": scaled(scale) for scale in (-0.1, -1, -3, -10, -100, 0, 3, 30, 1000)},
    "huge": lambda case, good: np.full_like(good[:, 0], 1e9),
    "wrong labels": wrong_labels,
    "pushed": pushed,
}
APART = {"": 0.0, ", apart": 30.0}  # colluding ones lie this far to both sides, where the loss bends least


def with_faulty(case: Case, good: Array, fault: FaultOn, apart: float) -> Array:
    """[k, m, d], faulty first, so that ties go to them."""
    faulty = np.repeat(fault(case, good)[:, None], case.setting.faulty, axis=1)
    sides = np.zeros(case.setting.faulty)
    sides[: len(sides) // 2 * 2] = np.tile([1.0, -1.0], len(sides) // 2)
    return np.concatenate([faulty + apart * sides[:, None] * case.problem.flattest, good], axis=1)


@dataclass(frozen=True, eq=False)
class Draws:
    candidates: Array  # [k, m, d]
    weights: Array  # [k, n]: f_r at each draw

    @classmethod
    def of(cls, case: Case, rng: np.random.Generator, draws: int, fault: FaultOn, apart: float) -> "Draws":
        problem, good = case.problem, case.setting.workers - case.setting.faulty
        shares = problem.drawn(rng, problem.batch_size, (draws, good))
        n = shares.shape[-1]
        for i, part in enumerate(case.parts[case.setting.faulty :]):
            size = len(range(n)[part])
            shares[:, i] = 0
            shares[:, i, part] = rng.multinomial(problem.batch_size, np.full(size, 1 / size), size=draws)
            shares[:, i] /= problem.batch_size
        weights = np.full((draws, n), 1 / n) if case.own is None else problem.drawn(rng, case.own, (draws,))
        return cls(with_faulty(case, shares @ problem.gradients(problem.x), fault, apart), weights)

    def oracle(self, case: Case, k: int) -> FakeOracle:
        problem, weights = case.problem, self.weights[k]

        def descent(rows: torch.Tensor) -> torch.Tensor:
            after = problem.losses(problem.x - case.setting.lr * rows.numpy())
            return torch.from_numpy((problem.losses(problem.x) - after) @ weights)

        return FakeOracle(descent)

    def updates(self, case: Case, rule: zeno.Rule) -> Array:
        """What the rule makes of each draw: [k, d]."""
        made = [
            rule(torch.from_numpy(rows), self.oracle(case, k)).update.numpy() for k, rows in enumerate(self.candidates)
        ]
        return np.stack(made)

    def quick_updates(self, case: Case) -> Array:
        """The stand-in for zeno.Zeno: all draws at once."""
        problem, setting = case.problem, case.setting
        descents = problem.losses(problem.x) - problem.losses(problem.x - setting.lr * self.candidates)  # [k, m, n]
        scores = (descents * self.weights[:, None]).sum(axis=-1)
        scores -= setting.rho * np.square(self.candidates).sum(axis=-1)
        kept = np.argsort(-scores, axis=1, kind="stable")[:, : setting.workers - setting.trim]
        return np.asarray(np.take_along_axis(self.candidates, kept[..., None], axis=1).mean(axis=1))


def zeno_of(case: Case) -> zeno.Zeno:
    return zeno.Zeno(trim=case.setting.trim, rho=case.setting.rho, batch_size=case.own or 1)


def worst_fault(case: Case) -> tuple[str, FaultOn, float]:
    """The fault that raises the loss most, by the stand-in: its name, candidates, and distance."""
    found = []
    for name, fault in FAULTS.items():
        for where, apart in list(APART.items())[: 1 + (case.setting.faulty > 1)]:
            draws = Draws.of(case, np.random.default_rng(0), PILOT, fault, apart)
            found.append((case.changes(draws.quick_updates(case)).mean(), name + where, fault, apart))
    return max(found, key=lambda one: one[0])[1:]


def measured(case: Case, draws: int = DRAWS) -> Array:
    """F(x - lr v) - F(x) at each of these draws, under the worst fault."""
    _, fault, apart = worst_fault(case)
    drawn = Draws.of(case, np.random.default_rng(1), draws, fault, apart)
    return case.changes(drawn.updates(case, zeno_of(case)))


def limits(changes: Array, cases: int) -> tuple[float, float]:
    """One-sided limits of the mean, each wrong with a probability of at most ALPHA / cases."""
    width = NormalDist().inv_cdf(1 - ALPHA / cases) * changes.std(ddof=1) / np.sqrt(len(changes))
    return float(changes.mean() - width), float(changes.mean() + width)


PAIRS = [(q, b) for b in range(4) for q in range(b + 1)]  # all there are of m = 4


def cases_of(name: str, own: int | None = None) -> Iterator[Case]:
    problem = PROBLEMS[name]
    lr = 0.5 / problem.smoothness
    for q, b in PAIRS:
        rho = theory.recommend(problem.assumptions(own), 4, q, lr).rho
        yield Case(problem, Setting(4, q, b, lr, rho), own)


def bounds_of(case: Case) -> tuple[float, float]:
    """The bound of the paper, and the proven one."""
    known, squared = case.problem.assumptions(case.own), case.problem.squared_gradient
    return (
        theory.decrease_bound(known, case.setting, squared),
        theory.proven_decrease_bound(known, case.setting, squared),
    )


@pytest.mark.parametrize("name", PROBLEMS)
def test_both_bounds_hold_under_the_worst_fault_where_scores_are_on_all_data(name: str) -> None:
    for case in cases_of(name):
        paper, proven = bounds_of(case)
        lower, upper = limits(measured(case), cases=2 * len(PAIRS) * len(PROBLEMS))
        assert upper <= paper, (case.setting, worst_fault(case)[0])
        assert lower <= proven, (case.setting, worst_fault(case)[0])


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("own", [1, 4])
def test_the_proven_bound_holds_under_the_worst_fault_where_scores_are_on_a_few_samples(name: str, own: int) -> None:
    for case in cases_of(name, own):
        if case.setting.trim == case.setting.faulty:  # elsewhere the same bound, and fewer faulty
            _, upper = limits(measured(case), cases=4 * 2 * len(PROBLEMS))
            assert upper <= bounds_of(case)[1], (case.setting, worst_fault(case)[0])


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_proven_bound_holds_even_if_the_faulty_know_the_samples_of_the_server(name: str) -> None:
    """They send the worst case of the proof: the error of the server's gradient, at the length that does most harm."""
    (case,) = (case for case in cases_of(name, own=1) if case.setting.faulty == 3)
    known, sizes = case.problem.assumptions(1), (0.5, 1.0)
    for size in sizes:
        draws = Draws.of(case, np.random.default_rng(8), DRAWS, scaled(0), apart=0.0)
        errors = draws.weights @ case.problem.gradients(case.problem.x) - case.problem.gradient(case.problem.x)
        draws.candidates[:, :3] = size * errors[:, None] / (case.setting.lr * (case.setting.beta - known.gap))
        _, upper = limits(case.changes(draws.updates(case, zeno_of(case))), cases=len(sizes) * len(PROBLEMS))
        assert upper <= bounds_of(case)[1]


@pytest.mark.parametrize("beta", [0.0, 1e-6])  # the appendix allows 0, the text of the paper any above
@pytest.mark.parametrize("own", [1, 4])
def test_the_bound_of_the_paper_fails_where_scores_are_on_a_few_samples(own: int, beta: float) -> None:
    """A candidate in a good direction but far too long: best on a few samples that all fit, any harm on the others."""
    problem = replace(PROBLEMS["logistic"], batch_size=1)  # then V is the variance of a single sample
    lr = 0.5 / problem.smoothness
    rho = beta * lr**2 / 2
    case = Case(problem, Setting(4, 2, 2, lr, rho), own)
    known, squared = problem.assumptions(own), problem.squared_gradient
    draws = Draws.of(case, np.random.default_rng(0), 150, scaled(1000.0), 0.0)
    lower, _ = limits(case.changes(draws.updates(case, zeno_of(case))), cases=4)
    assert lower > 2 * theory.decrease_bound(known, case.setting, squared)

    advised = replace(case.setting, rho=theory.recommend(known, 4, 2, lr).rho)
    case = replace(case, setting=advised)
    _, upper = limits(case.changes(draws.updates(case, zeno_of(case))), cases=4)
    assert upper <= theory.proven_decrease_bound(known, advised, squared)


def test_both_bounds_hold_where_workers_have_disjoint_data() -> None:
    problem = PROBLEMS["quadratic"]
    parts = tuple(slice(i, i + 2) for i in range(0, 8, 2))
    known = problem.worst_of_parts(list(parts), None)
    for q, b in PAIRS:
        setting = Setting(4, q, b, 0.5, rho=0.0)
        lower, upper = limits(measured(Case(problem, setting, parts=parts)), cases=2 * len(PAIRS))
        assert upper <= theory.decrease_bound(known, setting, problem.squared_gradient, disjoint=True)
        assert lower <= theory.proven_decrease_bound(known, setting, problem.squared_gradient, disjoint=True)


@dataclass(frozen=True, eq=False)
class Walk:
    points: Array  # [T, d]
    squared_gradients: Array  # [T]


def walk(problem: Problem, setting: Setting, steps: int, rule: zeno.Rule, seed: int, fault: FaultOn = pushed) -> Walk:
    """Steps of SGD with this rule and fault, scores on all data."""
    rng, x, points = np.random.default_rng(seed), problem.x, []
    for _ in range(steps):
        case = Case(replace(problem, x=x), setting)
        points.append(x)
        x = x - setting.lr * Draws.of(case, rng, 1, fault, 0.0).updates(case, rule)[0]
    return Walk(np.array(points), np.array([np.square(problem.gradient(point)).sum() for point in points]))


def lowest(problem: Problem) -> float:
    x = problem.x
    for _ in range(2000):
        x = x - problem.gradient(x) / problem.smoothness
    return float(problem.loss(x))


def along(problem: Problem, points: Array) -> Assumptions:
    """Constants that hold at all of these points."""
    each = [replace(problem, x=x).assumptions(None) for x in points]
    return replace(
        each[0], variance=max(one.variance for one in each), second_moment=max(one.second_moment for one in each)
    )


def test_both_bounds_on_the_average_gradient_hold_over_many_steps() -> None:
    problem, steps = PROBLEMS["logistic"], 16
    lr = theory.corollary_lr(problem.assumptions(None), steps)
    setting = Setting(4, 3, 3, lr, rho=0.0)
    paths = [walk(problem, setting, steps, zeno.Zeno(trim=3, rho=0.0), seed) for seed in range(20)]
    known = along(problem, np.concatenate([path.points for path in paths]))
    excess = float(problem.loss(problem.x)) - lowest(problem)
    lower, upper = limits(np.array([path.squared_gradients.mean() for path in paths]), cases=2)
    assert upper <= theory.average_gradient_bound(known, setting, steps, excess)
    assert lower <= theory.proven_average_gradient_bound(known, setting, steps, excess)


# What the tests above can see: they fail for a wrong rule, a wrong rho and a wrong bound.


@pytest.mark.parametrize("name", PROBLEMS)
def test_mean_breaks_the_bounds_that_zeno_keeps(name: str) -> None:
    for case in cases_of(name):
        if 0 < case.setting.faulty == case.setting.trim:
            draws = Draws.of(case, np.random.default_rng(2), DRAWS, scaled(-100), 0.0)
            lower, _ = limits(case.changes(draws.updates(case, zeno.Mean())), cases=len(PAIRS))
            assert lower > max(bounds_of(case))


def test_a_smaller_rho_lets_two_distant_candidates_do_harm() -> None:
    problem = PROBLEMS["saddle"]
    lr = 1 / problem.smoothness
    allowed = Case(problem, Setting(4, 2, 2, lr, theory.smallest_rho(problem.assumptions(None), lr)))
    below = replace(allowed, setting=replace(allowed.setting, rho=0.5 * allowed.setting.rho))
    draws = Draws.of(allowed, np.random.default_rng(7), DRAWS, scaled(-10), apart=100.0)
    lower_below, upper = (
        limits(case.changes(draws.updates(case, zeno_of(case))), cases=2)[which]
        for case, which in ((below, 0), (allowed, 1))
    )
    assert upper <= min(bounds_of(allowed))
    assert lower_below > 10 * max(bounds_of(allowed))


def test_one_good_worker_attains_the_proven_bound_and_a_bound_without_the_variance_is_caught() -> None:
    problem = quadratic([1.0, 1.0], [1.0, -1.0])
    case = Case(problem, Setting(1, 0, 0, lr=0.8, rho=0.0))
    lower, upper = limits(measured(case, draws=400), cases=2)
    assert lower <= bounds_of(case)[1] <= upper
    known = replace(problem.assumptions(None), second_moment=problem.squared_gradient)
    assert lower > theory.proven_decrease_bound(known, case.setting, problem.squared_gradient)


def test_the_stand_in_makes_the_updates_of_zeno() -> None:
    for name in PROBLEMS:
        for case in cases_of(name, own=2):
            for fault, apart in ((pushed, 0.0), (scaled(-3), 30.0)):
                draws = Draws.of(case, np.random.default_rng(3), 5, fault, apart)
                np.testing.assert_allclose(draws.updates(case, zeno_of(case)), draws.quick_updates(case), rtol=1e-9)


# What needs no expectation.

numbers = st.floats(-10, 10, allow_subnormal=False).map(lambda value: round(value, 1))  # with ties


@st.composite
def any_candidates(draw: st.DrawFn) -> tuple[Array, int, int]:
    """Candidates [m, d] of which the first q are faulty, and b."""
    m = draw(st.integers(1, 7))
    b = draw(st.integers(0, m - 1))
    q = draw(st.integers(0, b))
    rows = draw(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=m, max_size=m))
    return np.array(rows), q, b


@settings(max_examples=60, deadline=None)
@given(given_=any_candidates(), rho=st.sampled_from([0.0, 0.01, 1.0]), own=st.integers(0, 2**16))
def test_the_ith_best_score_of_all_is_no_lower_than_the_ith_best_of_the_good(
    given_: tuple[Array, int, int], rho: float, own: int
) -> None:
    rows, q, b = given_
    case = Case(PROBLEMS["logistic"], Setting(len(rows), q, b, 0.3, rho), own=3)
    draw = Draws(rows[None], case.problem.drawn(np.random.default_rng(own), 3, (1,)))
    result = zeno_of(case)(torch.from_numpy(rows), draw.oracle(case, 0))
    assert result.scores is not None
    scores = result.scores.numpy()
    of_all, of_good = -np.sort(-scores), -np.sort(-scores[q:])
    assert (of_all[: len(of_good)] >= of_good).all()
    kept = -np.sort(-scores[result.kept.numpy()])
    np.testing.assert_array_equal(kept, of_all[: len(rows) - b])
    assert kept.mean() >= of_good.mean() - 1e-12


@settings(max_examples=60, deadline=None)
@given(given_=any_candidates(), name=st.sampled_from(sorted(PROBLEMS)), more=st.sampled_from([1.0, 3.0]))
def test_the_update_is_no_worse_than_the_average_good_candidate(
    given_: tuple[Array, int, int], name: str, more: float
) -> None:
    """The heart of the proof: f_r(x - lr v) + rho |v|^2 is at most its mean over the good, for any candidates."""
    rows, q, b = given_
    problem = PROBLEMS[name]
    lr = 0.7 / problem.smoothness
    rho = more * theory.smallest_rho(problem.assumptions(None), lr)
    case = Case(problem, Setting(len(rows), q, b, lr, rho))
    draw = Draws(rows[None], np.full((1, len(problem.gradients(problem.x))), 1 / len(problem.gradients(problem.x))))
    update = draw.updates(case, zeno_of(case))
    assert -case.expected_scores(update)[0] <= -case.expected_scores(rows[q:]).mean() + 1e-9


# The formulas.

KNOWN = Assumptions(smoothness=2.0, curvature=-0.5, variance=3.0, second_moment=5.0)


def test_bounds_by_hand() -> None:
    setting = Setting(workers=10, faulty=4, trim=6, lr=0.1, rho=0.005)  # beta = 1
    # (6 - 4 + 1) (10 - 4) 3 / 4^2 = 3.375; (2 + 1) 0.01 * 5 / 2 = 0.075
    assert theory.error_floor(KNOWN, 10, 4, 6) == pytest.approx(2 * 3.375)
    assert theory.decrease_bound(KNOWN, setting, 7.0) == pytest.approx(-0.35 + 0.1 * 3.375 + 0.075)
    assert theory.proven_decrease_bound(KNOWN, setting, 7.0) == pytest.approx(-0.7 + 0.075)
    # 4 * 3 / 10 + 4 * 6 * 5 / 10 + 2 * 36 * 6 * 5 / (100 * 4)
    assert theory.error_floor(KNOWN, 10, 4, 6, disjoint=True) == pytest.approx(1.2 + 12 + 5.4)
    # 4 * 5 * (4 / 10)^2
    assert theory.proven_floor(KNOWN, 10, 4, disjoint=True) == pytest.approx(3.2)
    assert theory.proven_decrease_bound(KNOWN, setting, 7.0, disjoint=True) == pytest.approx(-0.35 + 0.16 + 0.075)
    noisy = replace(KNOWN, own_variance=0.2, curvature_gap=0.5)
    assert theory.proven_decrease_bound(noisy, setting, 7.0) == pytest.approx(-0.7 + 0.075 + 0.2)
    assert theory.proven_floor(noisy, 10, 4) == pytest.approx(1.0)


def test_average_bounds_are_those_of_the_corollaries() -> None:
    lr = theory.corollary_lr(KNOWN, steps=25)
    setting = Setting(10, 4, 6, lr, rho=0.5 * lr**2)  # beta = 1
    assert lr == 0.1
    corollary = (2 * 2.0 * 8.0 + 3.0 * 5.0 / 2.0) / 5
    assert theory.average_gradient_bound(KNOWN, setting, 25, 8.0) == pytest.approx(corollary + 6.75)
    assert theory.average_gradient_bound(KNOWN, setting, 25, 8.0, disjoint=True) == pytest.approx(corollary + 18.6)
    assert theory.proven_average_gradient_bound(KNOWN, setting, 25, 8.0) == pytest.approx(corollary / 2)
    proven = theory.proven_average_gradient_bound(KNOWN, setting, 25, 8.0, disjoint=True)
    assert proven == pytest.approx(corollary + 3.2)


@given(m=st.integers(2, 60), data=st.data(), disjoint=st.booleans())
def test_the_floor_falls_as_workers_grow_or_trim_shrinks(m: int, data: st.DataObject, disjoint: bool) -> None:
    b = data.draw(st.integers(0, m - 1))
    q = data.draw(st.integers(0, b))
    floor = theory.error_floor(KNOWN, m, q, b, disjoint)
    assert theory.error_floor(KNOWN, m + 1, q, b, disjoint) < floor
    if q < b:
        assert theory.error_floor(KNOWN, m, q, b - 1, disjoint) < floor
        assert theory.error_floor(KNOWN, m, q + 1, b, disjoint) < floor
    grown = theory.error_floor(KNOWN, m + 1, q, b + 1, disjoint)  # one more worker, and one more left out
    assert disjoint or grown > floor


def test_proven_bounds_imply_those_of_the_paper_where_scores_are_on_all_data() -> None:
    for q, b in PAIRS:
        for lr in (0.5, 0.1, 0.001):
            setting = Setting(4, q, b, lr, theory.smallest_rho(KNOWN, lr))
            for squared, disjoint in product((0.0, 1.0, 5.0), (False, True)):
                paper = theory.decrease_bound(KNOWN, setting, squared, disjoint)
                assert theory.proven_decrease_bound(KNOWN, setting, squared, disjoint) <= paper


@pytest.mark.parametrize("own_variance", [None, 0.0, 0.01, 1.0])
def test_recommended_settings_have_the_smallest_bounds(own_variance: float | None) -> None:
    known, lr = replace(KNOWN, own_variance=own_variance), 0.05
    trim, rho = theory.recommend(known, workers=10, faulty=6, lr=lr)
    setting = Setting(10, 6, trim, lr, rho)
    best = theory.proven_decrease_bound(known, setting, 1.0)
    floors = [theory.error_floor(known, 10, 6, b) for b in range(trim, 10)]
    assert all(low < high for low, high in pairwise(floors))
    for factor in (0.99, 1.01, 2.0) if own_variance else (1.01, 2.0):  # without noise less is not allowed
        assert theory.proven_decrease_bound(known, replace(setting, rho=factor * rho), 1.0) > best


def test_the_average_bound_nears_the_floor_as_lr_falls() -> None:
    known = replace(KNOWN, own_variance=0.2)
    for disjoint in (False, True):
        lr = 1e-6
        trim, rho = theory.recommend(known, 10, 6, lr)
        bound = theory.proven_average_gradient_bound(known, Setting(10, 6, trim, lr, rho), 10**12, 8.0, disjoint)
        assert bound == pytest.approx(theory.proven_floor(known, 10, 6, disjoint), rel=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: replace(KNOWN, smoothness=0.0), "smoothness above 0. Found smoothness=0"),
        (lambda: replace(KNOWN, curvature=3.0), "Found curvature=3.0 with smoothness=2.0"),
        (lambda: replace(KNOWN, variance=-1.0), "variance as a finite number of at least 0. Found variance=-1.0"),
        (lambda: replace(KNOWN, second_moment=float("nan")), "Found second_moment=nan"),
        (lambda: Setting(4, 2, 1, 0.1, 1.0), "trim of at least faulty. Found trim=1 with faulty=2"),
        (lambda: Setting(4, 2, 4, 0.1, 1.0), "trim below workers. Found trim=4 with workers=4"),
        (lambda: Setting(4, 2, 2, 0.0, 1.0), "lr above 0. Found lr=0"),
        (lambda: Setting(True, 0, 0, 0.1, 1.0), "workers as a whole number of at least 1. Found workers=True"),
        (lambda: theory.corollary_lr(KNOWN, 0), "Found steps=0"),
        (lambda: theory.decrease_bound(KNOWN, Setting(4, 2, 2, 0.6, 1.0), 1.0), "1 / smoothness = 0.5. Found lr=0.6"),
        (lambda: theory.decrease_bound(KNOWN, Setting(4, 2, 2, 0.1, 1e-3), 1.0), "lr^2 / 2 = 0.0025. Found rho=0.001"),
        (lambda: theory.decrease_bound(KNOWN, Setting(4, 2, 2, 0.1, 1.0), -1.0), "Found squared_gradient=-1.0"),
        (
            lambda: theory.proven_decrease_bound(
                replace(KNOWN, own_variance=1.0), Setting(4, 2, 2, 0.1, 0.0125), squared_gradient=1.0
            ),
            "rho above curvature_gap * lr^2 / 2 = 0.0125. Found rho=0.0125",
        ),
        (  # equal gradients of all samples do not make all samples equal
            lambda: theory.proven_decrease_bound(
                replace(KNOWN, own_variance=0.0), Setting(4, 2, 2, 0.1, 0.0124), squared_gradient=1.0
            ),
            "rho above curvature_gap * lr^2 / 2 = 0.0125. Found rho=0.0124",
        ),
    ],
)
def test_values_that_the_theorem_does_not_cover_raise(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_the_code_on_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (DOCS / "theory.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(code, {})
    said = re.findall(r"# prints (.*)", code)
    assert capsys.readouterr().out.splitlines() == said


@pytest.mark.slow
@pytest.mark.parametrize("own", [None, 1, 4, 16])
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_proven_bound_holds_under_every_fault_with_more_workers(name: str, own: int | None) -> None:
    problem = PROBLEMS[name]
    pairs = [(0, 4), (3, 3), (3, 6), (7, 7)]
    for lr in (1 / problem.smoothness, 0.05 / problem.smoothness):
        for q, b in pairs:
            case = Case(problem, Setting(8, q, b, lr, theory.recommend(problem.assumptions(own), 8, q, lr).rho), own)
            for fault in FAULTS.values():
                for apart in APART.values():
                    draws = Draws.of(case, np.random.default_rng(4), DRAWS, fault, apart)
                    changes = case.changes(draws.updates(case, zeno_of(case)))
                    lower, _ = limits(changes, cases=2 * len(pairs) * len(FAULTS) * len(APART) * 12)
                    assert lower <= bounds_of(case)[1]


# The picture.

BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#555555"


def picture(path: Path) -> None:
    """Bounds and measurements: one step by the number of faulty workers, by their size, and many steps."""
    figure = Figure(figsize=(15, 4.6), layout="constrained")
    one_step, by_size, many_steps = figure.subplots(1, 3)
    _one_step(one_step)
    _by_size(by_size)
    _many_steps(many_steps)
    for axes in (one_step, by_size, many_steps):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8.5, loc="lower left" if axes is many_steps else "upper left")
    figure.savefig(path, dpi=120)


def _with_limits(axes: Axes, at: Sequence[float], values: list[Array], **style: Any) -> None:
    means = np.array([one.mean() for one in values])
    sides = [means[k] - limits(one, len(values))[0] for k, one in enumerate(values)]
    axes.errorbar(at, means, yerr=sides, capsize=3, **style)


def _one_step(axes: Axes) -> None:
    problem, at = PROBLEMS["logistic"], list(range(8))
    lr = 0.2 / problem.smoothness
    cases = [Case(problem, Setting(8, q, q, lr, rho=0.0)) for q in at]
    with_mean = []
    for case in cases:
        draws = Draws.of(case, np.random.default_rng(5), 200, scaled(-3), 0.0)
        with_mean.append(case.changes(draws.updates(case, zeno.Mean())))
    axes.plot(at, [bounds_of(case)[0] for case in cases], "--", color=GREY, label="Theorem 1")
    axes.plot(at, [bounds_of(case)[1] for case in cases], "-", color=BLUE, label="proven bound")
    _with_limits(
        axes, at, [measured(c, draws=400) for c in cases], fmt="o", color=GREEN, label="Zeno, worst fault tried"
    )
    _with_limits(axes, at, with_mean, fmt="x:", color=ORANGE, label="Mean, gradients times -3")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(xlabel="faulty workers q of 8, trim b = q", ylabel="expected change of the loss in one step")
    axes.set_title("Scores on all data: both bounds hold")


def _by_size(axes: Axes) -> None:
    problem, at = PROBLEMS["logistic"], [1, 3, 10, 30, 100, 300, 1000]
    known = problem.assumptions(4)
    lr = 0.2 / problem.smoothness
    least = Case(problem, Setting(8, 4, 4, lr, rho=0.0), own=4)
    advised = replace(least, setting=replace(least.setting, rho=theory.recommend(known, 8, 4, lr).rho))
    squared = problem.squared_gradient
    paper = theory.decrease_bound(known, least.setting, squared)
    axes.plot(at, [paper] * len(at), "--", color=GREY, label="Theorem 1, smallest rho")
    proven = theory.proven_decrease_bound(known, advised.setting, squared)
    axes.plot(at, [proven] * len(at), "-", color=BLUE, label="proven bound, recommended rho")
    for case, style in (
        (least, {"fmt": "s:", "color": ORANGE, "label": "Zeno, smallest rho"}),
        (advised, {"fmt": "o", "color": GREEN, "label": "Zeno, recommended rho"}),
    ):
        drawn = [Draws.of(case, np.random.default_rng(6), 300, scaled(size), 0.0) for size in at]
        _with_limits(axes, at, [case.changes(d.updates(case, zeno_of(case))) for d in drawn], **style)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=0.1)
    axes.set(xlabel="4 of 8 workers send a good gradient times this", ylabel="expected change of the loss in one step")
    axes.set_title("Scores on 4 samples: Theorem 1 fails")


def _many_steps(axes: Axes) -> None:
    problem, at, walks = PROBLEMS["logistic"], [4, 16, 64, 256], 20
    excess = float(problem.loss(problem.x)) - lowest(problem)
    papers, provens, by_zeno, by_mean = [], [], [], []
    for steps in at:
        setting = Setting(8, 4, 4, theory.corollary_lr(problem.assumptions(None), steps), rho=0.0)
        paths = [walk(problem, setting, steps, zeno.Zeno(trim=4, rho=0.0), seed) for seed in range(walks)]
        known = along(problem, np.concatenate([path.points for path in paths]))
        papers.append(theory.average_gradient_bound(known, setting, steps, excess))
        provens.append(theory.proven_average_gradient_bound(known, setting, steps, excess))
        by_zeno.append(np.array([path.squared_gradients.mean() for path in paths]))
        paths = [walk(problem, setting, steps, zeno.Mean(), seed, scaled(-3)) for seed in range(walks)]
        by_mean.append(np.array([path.squared_gradients.mean() for path in paths]))
    axes.plot(at, papers, "--", color=GREY, label="Corollary 1")
    axes.axhline(theory.error_floor(known, 8, 4, 4), color=GREY, linewidth=0.8, linestyle=":", label="its error floor")
    axes.plot(at, provens, "-", color=BLUE, label="proven bound")
    _with_limits(axes, at, by_zeno, fmt="o", color=GREEN, label="Zeno, pushed as far as scores allow")
    _with_limits(axes, at, by_mean, fmt="x:", color=ORANGE, label="Mean, gradients times -3")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set(xlabel="steps T, lr = 1 / (L sqrt T), q = b = 4 of 8", ylabel="mean of |grad F|^2 over the steps")
    axes.set_ylim(bottom=0.012)
    axes.set_title("Many steps, scores on all data")


if __name__ == "__main__":
    torch.set_num_threads(1)
    picture(DOCS / "theory.png")
