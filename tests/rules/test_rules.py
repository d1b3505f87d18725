"""The contract: what holds for every rule, by being in RULES, against independent float64 references."""

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import zeno
from support.oracle import CURVATURE, FakeOracle
from zeno.rules import Rule

Array = npt.NDArray[np.float64]
Reference = Callable[[Array, Array, int], tuple[Array, set[int]]]
"""(usable rows [n, d], their descents [n], how many of them are faulty) -> (update [d], positions that were kept)."""

RADIUS = 2.0


def everybody(rows: Array) -> set[int]:
    return set(range(len(rows)))


def lowest(values: "list[float] | Array", num: int) -> list[int]:
    return sorted(range(len(values)), key=lambda i: (values[i], i))[:num]


def mean_of(rows: Array, kept: "list[int]") -> tuple[Array, set[int]]:
    return rows[kept].mean(axis=0), set(kept)


def squares(rows: Array) -> Array:
    return np.array([[float(((a - b) ** 2).sum()) for b in rows] for a in rows])


def krum_sums(rows: Array, faulty: int) -> list[float]:
    near = max(1, len(rows) - faulty - 2)
    return [sum(sorted(np.delete(distances, i))[:near]) for i, distances in enumerate(squares(rows))]


def reference_mean(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    return rows.mean(axis=0), everybody(rows)


def reference_median(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    return np.median(rows, axis=0), everybody(rows)


def reference_trimmed_mean(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    columns = [sorted(column)[faulty : len(rows) - faulty] for column in rows.T]
    return np.array([sum(column) / len(column) for column in columns]), everybody(rows)


def nearest(rows: Array, centre: Array, num: int) -> Array:
    chosen = [sorted(col, key=lambda v: (abs(v - c), v))[:num] for col, c in zip(rows.T, centre, strict=True)]
    return np.array([sum(values) / num for values in chosen])


def reference_meamed(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    return nearest(rows, np.median(rows, axis=0), len(rows) - faulty), everybody(rows)


def reference_phocas(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    return nearest(rows, reference_trimmed_mean(rows, descents, faulty)[0], len(rows) - faulty), everybody(rows)


def densest(rows: Array, faulty: int, num: int, then: "Array | list[float] | None" = None) -> list[int]:
    sums, then = krum_sums(rows, faulty), squares(rows).sum(axis=1) if then is None else then
    return sorted(range(len(rows)), key=lambda i: (sums[i], then[i], i))[:num]


def reference_krum(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    return mean_of(rows, densest(rows, faulty, 1))


def reference_multi_krum(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    return mean_of(rows, densest(rows, faulty, len(rows) - faulty))


def reference_bulyan(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    left, chosen, among_all = list(range(len(rows))), [], np.array(krum_sums(rows, faulty))
    for _ in range(len(rows) - 2 * faulty):
        chosen.append(left.pop(densest(rows[left], faulty, 1, among_all[left])[0]))
    return nearest(rows[chosen], np.median(rows[chosen], axis=0), len(rows) - 4 * faulty), set(chosen)


def reference_geometric_median(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    point = np.median(rows, axis=0)
    for _ in range(20_000):
        distances = np.maximum(np.sqrt(((rows - point) ** 2).sum(axis=1)), 1e-9 * np.abs(rows).max())
        new = (rows / distances[:, None]).sum(axis=0) / (1 / distances).sum()
        if np.abs(new - point).max() <= 1e-12 * np.abs(rows).max():
            break
        point = new
    return point, everybody(rows)


def sum_of_distances(rows: Array, point: Array) -> float:
    return float(np.sqrt(((rows - point) ** 2).sum(axis=1)).sum())


def reference_centered_clipping(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    v = np.zeros(rows.shape[1])
    for _ in range(5):
        differences = rows - v
        norms = np.sqrt((differences**2).sum(axis=1))
        factors = [min(1.0, RADIUS / norm) if norm > 0 else 1.0 for norm in norms]
        v = v + np.mean([f * difference for f, difference in zip(factors, differences, strict=True)], axis=0)
    return v, everybody(rows)


def reference_mda(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    distances = squares(rows)

    def width(group: Iterable[int]) -> tuple[float, float]:
        inside = distances[np.ix_(list(group), list(group))]
        return inside.max(), inside.sum()

    return mean_of(rows, list(min(itertools.combinations(range(len(rows)), len(rows) - faulty), key=width)))


def reference_smea(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    def top(group: Iterable[int]) -> float:
        centred = rows[list(group)] - rows[list(group)].mean(axis=0)
        return float(np.linalg.eigvalsh(centred.T @ centred)[-1])

    return mean_of(rows, list(min(itertools.combinations(range(len(rows)), len(rows) - faulty), key=top)))


def own_gradient(d: int) -> Array:
    """The server's own gradient in these tests: known to the references too."""
    return np.linspace(1.0, 2.0, d)


def reference_monna(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    return mean_of(rows, lowest(((rows - own_gradient(rows.shape[1])) ** 2).sum(axis=1), len(rows) - faulty))


def reference_cge(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    return mean_of(rows, lowest((rows**2).sum(axis=1), len(rows) - faulty))


def reference_caf(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    c = np.ones(len(rows))
    tried: list[tuple[float, int, Array, set[int]]] = []
    while True:
        mean = c @ rows / c.sum()
        centred = rows - mean
        values, vectors = np.linalg.eigh((c[:, None] * centred).T @ centred / c.sum())
        tried.append((values[-1], len(tried), mean, set(np.flatnonzero(c > 0).tolist())))
        t = (centred @ vectors[:, -1]) ** 2 * (c > 0)
        if c.sum() <= len(rows) - 2 * faulty or t.max() <= 0:
            break
        c = c * (1 - t / t.max())
    return min(tried)[2:]


def reference_dnc(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    centred = rows - rows.mean(axis=0)
    direction = np.linalg.svd(centred)[2][0]
    return mean_of(rows, lowest((centred @ direction) ** 2, len(rows) - faulty))


def reference_signguard(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    n, norms = len(rows), np.sqrt((rows**2).sum(axis=1))
    median = float(np.median(norms))
    ordinary = {i for i in range(n) if 0.1 * median <= norms[i] <= 3 * median}
    points = np.array([[np.mean(row > 0), np.mean(row == 0), np.mean(row < 0)] for row in rows])

    def apart(a: Array, b: Array) -> float:
        return float(np.sqrt(((a - b) ** 2).sum()))

    width = float(np.mean([sorted(apart(a, b) for b in points)[(n - 1) // 2] for a in points])) + 1e-9
    centres = [point.copy() for point in points]
    for _ in range(100):
        centres = [np.mean([p for p in points if apart(c, p) <= width], axis=0) for c in centres]
    clusters = [{j for j in range(n) if apart(centres[i], centres[j]) <= width} for i in range(n)]
    spreads = [sum(apart(points[i], points[j]) for i in cluster for j in cluster) for cluster in clusters]
    best = min(range(n), key=lambda i: (-len(clusters[i]), round(spreads[i], 9), i))
    kept = ordinary & clusters[best] or ordinary
    clipped = [rows[i] * min(1.0, median / norms[i]) if norms[i] else rows[i] for i in sorted(kept)]
    return np.mean(clipped, axis=0), kept


def reference_fltrust(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    own = own_gradient(rows.shape[1])
    size = np.sqrt((own**2).sum())
    norms = np.sqrt((rows**2).sum(axis=1))
    trust = [max(0.0, float(row @ own) / (norm * size)) if norm else 0.0 for row, norm in zip(rows, norms, strict=True)]
    kept = {i for i, t in enumerate(trust) if t > 0}
    if not kept:
        return np.zeros(rows.shape[1]), kept
    return sum(trust[i] * rows[i] * size / norms[i] for i in kept) / sum(trust), kept


def reference_bant(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    kept = {i for i, descent in enumerate(descents) if descent > 0}
    if not kept:
        return np.zeros(rows.shape[1]), kept
    trust = {i: 0.5 / len(rows) + 0.5 * descents[i] / sum(descents[j] for j in kept) for i in kept}
    return sum(trust[i] * rows[i] for i in kept) / sum(trust.values()), kept


LR = 0.1


def reference_auto_bant(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    weights = np.full(len(rows), 1 / len(rows))
    for _ in range(5):
        gradient = own_gradient(rows.shape[1]) - CURVATURE * LR * weights @ rows
        slopes = LR * rows @ gradient
        weights = weights * np.exp(slopes - slopes.max())
        weights /= weights.sum()
    return weights @ rows, set(np.flatnonzero(weights).tolist())


def reference_bygars(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    own = own_gradient(rows.shape[1])
    clipped = np.array([row * min(1.0, float(np.linalg.norm(own) / np.linalg.norm(row))) for row in rows])
    reputations = 0.05 * clipped @ own
    return reputations @ clipped / np.abs(reputations).sum(), everybody(rows)


def reference_fedgreed(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    order = lowest(-descents, len(rows))
    means = [rows[order[:k]].mean(axis=0) for k in range(1, len(rows) + 1)]
    losses = [CURVATURE / 2 * (LR * u) @ (LR * u) - LR * u @ own_gradient(len(u)) for u in means]
    losses[0] = -descents[order[0]]
    k = next((k for k in range(1, len(rows)) if losses[k] >= losses[k - 1]), len(rows))
    return means[k - 1], set(order[:k])


def reference_zeno(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    return mean_of(rows, lowest(5e-4 * (rows**2).sum(axis=1) - descents, len(rows) - faulty))


def reference_zenopp(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    v, accepted = own_gradient(rows.shape[1]), {}
    for i, u in enumerate(rows):
        if np.linalg.norm(u) > 0:
            rescaled = u * np.linalg.norm(v) / np.linalg.norm(u)
            if LR * v @ rescaled - 0.001 * rescaled @ rescaled >= 0:
                accepted[i] = rescaled
    return (np.mean(list(accepted.values()), axis=0) if accepted else np.zeros(len(v))), set(accepted)


def reference_afl_guard(rows: Array, descents: Array, faulty: int) -> tuple[Array, set[int]]:
    v = own_gradient(rows.shape[1])
    accepted = [i for i, u in enumerate(rows) if np.linalg.norm(u - v) <= 1.5 * np.linalg.norm(v)]
    return mean_of(rows, accepted) if accepted else (np.zeros(len(v)), set())


@dataclass(frozen=True)
class Case:
    make: Callable[[int], Rule]  # how many faulty workers to tolerate -> rule
    most: Callable[[int], int]  # m -> how many it can tolerate; below 0: not this m
    reference: Reference
    lowers: bool = True  # an unusable row counts as one of the faulty
    ties: bool = True  # ties are decided by the definition, not by the last digit of a computation
    scales: bool = True  # means the same at any scale of the candidates
    cost: Callable[[Array, Array], float] | None = (
        None  # (rows, update): what the rule minimises, where many updates do
    )


def minority(m: int) -> int:
    return (m - 1) // 2


def all_but_one(m: int) -> int:
    return m - 1


CASES = {
    "mean": Case(lambda b: zeno.Mean(), minority, reference_mean, lowers=False),
    "median": Case(lambda b: zeno.Median(), minority, reference_median, lowers=False),
    "trimmed_mean": Case(zeno.TrimmedMean, minority, reference_trimmed_mean),
    "krum": Case(zeno.Krum, lambda m: (m - 3) // 2, reference_krum),
    "multi_krum": Case(zeno.MultiKrum, lambda m: (m - 3) // 2, reference_multi_krum),
    "bulyan": Case(zeno.Bulyan, lambda m: (m - 3) // 4, reference_bulyan),
    "geometric_median": Case(
        lambda b: zeno.GeometricMedian(1e-7),
        minority,
        reference_geometric_median,
        lowers=False,
        ties=False,
        cost=sum_of_distances,
    ),
    "centered_clipping": Case(
        lambda b: zeno.CenteredClipping(RADIUS), minority, reference_centered_clipping, lowers=False, scales=False
    ),
    "meamed": Case(zeno.MeaMed, minority, reference_meamed),
    "phocas": Case(zeno.Phocas, minority, reference_phocas, ties=False),
    "mda": Case(zeno.MDA, minority, reference_mda, ties=False),
    "smea": Case(zeno.SMEA, minority, reference_smea, ties=False),
    "monna": Case(zeno.MoNNA, all_but_one, reference_monna, ties=False, scales=False),
    "cge": Case(zeno.CGE, all_but_one, reference_cge),
    "caf": Case(zeno.CAF, minority, reference_caf, ties=False),
    "dnc": Case(zeno.DnC, minority, reference_dnc, ties=False),
    "signguard": Case(lambda b: zeno.SignGuard(), minority, reference_signguard, lowers=False, ties=False),
    "fltrust": Case(lambda b: zeno.FLTrust(), all_but_one, reference_fltrust, lowers=False, ties=False, scales=False),
    "bant": Case(lambda b: zeno.BANT(), all_but_one, reference_bant, lowers=False),
    "auto_bant": Case(
        lambda b: zeno.AutoBANT(steps=5, step_size=1.0),
        all_but_one,
        reference_auto_bant,
        lowers=False,
        ties=False,
        scales=False,
    ),
    "bygars": Case(lambda b: zeno.ByGARS(), all_but_one, reference_bygars, lowers=False, ties=False, scales=False),
    "fedgreed": Case(
        lambda b: zeno.FedGreed(), all_but_one, reference_fedgreed, lowers=False, ties=False, scales=False
    ),
    "zeno": Case(zeno.Zeno, all_but_one, reference_zeno),
    "zenopp": Case(lambda b: zeno.ZenoPP(), all_but_one, reference_zenopp, lowers=False, ties=False, scales=False),
    "afl_guard": Case(
        lambda b: zeno.AFLGuard(), all_but_one, reference_afl_guard, lowers=False, ties=False, scales=False
    ),
}
every_rule = pytest.mark.parametrize("name", CASES)


def test_every_rule_has_a_reference() -> None:
    assert set(CASES) == set(zeno.RULES) - {"zeno_auto", "server_alone"}  # tests/rules/test_zeno_auto.py


@dataclass(frozen=True)
class Example:
    candidates: Tensor  # [m, d]
    descents: Tensor  # [m]
    faulty: int
    unusable: list[int]

    @property
    def oracle(self) -> FakeOracle:
        return FakeOracle(self.descents, torch.from_numpy(own_gradient(self.candidates.shape[1])).float())


@st.composite
def examples(draw: st.DrawFn, case: Case) -> Example:
    m = draw(st.integers(1, 12).filter(lambda m: case.most(m) >= 0))
    d = draw(st.integers(1, 5))
    # 1e-20 to 1e20, in powers of two, so that ties stay ties
    scale = 2.0 ** draw(st.integers(-66, 66)) if case.scales else 1.0
    if case.ties:  # few distinct values, so that ties are common
        values = draw(st.lists(st.integers(-3, 3), min_size=m * d, max_size=m * d))
        candidates = torch.tensor(values, dtype=torch.float32).view(m, d)
    else:
        candidates = torch.randn(m, d, generator=torch.Generator().manual_seed(draw(st.integers(0, 2**32))))
    descents = draw(st.lists(st.integers(-2, 2), min_size=m, max_size=m))
    faulty = draw(st.integers(0, case.most(m)))
    unusable = draw(st.lists(st.integers(0, m - 1), max_size=faulty, unique=True))
    candidates = candidates * scale
    for row in unusable:
        candidates[row, draw(st.integers(0, d - 1))] = draw(st.sampled_from([math.nan, math.inf, -math.inf]))
    return Example(candidates, torch.tensor(descents, dtype=torch.float64) * max(1.0, scale**2), faulty, unusable)


@every_rule
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_rules_equal_their_float64_references(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    example = data.draw(examples(case))
    before = example.candidates.clone()

    result = case.make(example.faulty)(example.candidates, example.oracle)

    usable = [i for i in range(len(before)) if i not in example.unusable]
    faulty = example.faulty - len(example.unusable) if case.lowers else example.faulty
    rows = before[usable].double().numpy()
    update, kept = case.reference(rows, example.descents[usable].double().numpy(), faulty)
    scale = float(np.abs(rows).max()) or 1.0
    if case.cost is None:
        np.testing.assert_allclose(result.update.double().numpy() / scale, update / scale, atol=2e-6)
    else:
        cost = case.cost(rows / scale, result.update.double().numpy() / scale)
        assert cost <= case.cost(rows / scale, update / scale) * (1 + 1e-6) + 1e-6
    assert result.update.dtype == torch.float32
    assert set(result.kept.nonzero().flatten().tolist()) == {usable[i] for i in kept}
    assert torch.equal(example.candidates.nan_to_num(7), before.nan_to_num(7)), "the candidates were written to"
    assert_weights_explain(result, example.candidates, name)
    if result.scores is not None:
        assert (result.scores[example.unusable] == -math.inf).all()
        if result.kept.any():
            worst_kept = result.scores[result.kept].min()
            assert (result.scores[~result.kept] <= worst_kept).all()


PER_COORDINATE = ("median", "trimmed_mean", "meamed", "phocas", "bulyan")
SIGNED = ("bygars",)  # subtracts candidates that point the wrong way


def assert_weights_explain(result: zeno.Aggregate, candidates: Tensor, name: str) -> None:
    """The weights are those that the update is the weighted sum with, or uniform where coordinates differ in them."""
    weights, rows = result.weights, candidates.nan_to_num(0, 0, 0).double()
    assert weights.dtype == torch.float64
    assert weights.shape == (len(candidates),)
    assert (weights >= 0).all() or name in SIGNED
    assert torch.equal(result.kept, weights != 0)
    if name in PER_COORDINATE:
        assert weights[result.kept].tolist() == [1 / int(result.kept.sum())] * int(result.kept.sum())
    else:
        scale = float(rows.abs().max()) or 1.0
        torch.testing.assert_close(weights @ rows / scale, result.update.double() / scale, atol=2e-6, rtol=0)


@every_rule
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_unusable_rows_leave_the_update_of_the_others(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    example = data.draw(examples(case))
    usable = torch.tensor([i not in example.unusable for i in range(len(example.candidates))])
    faulty = example.faulty - len(example.unusable) if case.lowers else example.faulty
    result = case.make(example.faulty)(example.candidates, example.oracle)
    without = Example(example.candidates[usable], example.descents[usable], faulty, [])
    alone = case.make(faulty)(without.candidates, without.oracle)
    scale = float(example.candidates[usable].abs().max()) or 1.0
    torch.testing.assert_close(result.update / scale, alone.update / scale, atol=1e-6, rtol=0)
    assert torch.equal(result.kept[usable], alone.kept)


BAD: dict[str, Callable[[int], Tensor]] = {
    "1e38": lambda d: torch.full((d,), 1e38),
    "-1e38": lambda d: torch.full((d,), -1e38),
    "1e-40": lambda d: torch.full((d,), 1e-40),
    "zero": torch.zeros,
    "alternating": lambda d: 1e38 * (-1.0) ** torch.arange(d),
}


@every_rule
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("m", [1, 2, 7, 11])
def test_updates_are_finite_for_all_finite_rows(name: str, bad: str, m: int) -> None:
    case, d = CASES[name], 6
    if case.most(m) < 0:
        pytest.skip(f"{name} is not for {m} workers")
    torch.manual_seed(0)
    for num_bad in {case.most(m) if case.lowers else m - 1, m}:
        candidates = torch.randn(m, d)
        candidates[:num_bad] = BAD[bad](d)
        example = Example(candidates, torch.randn(m), case.most(m), [])
        result = case.make(example.faulty)(candidates, example.oracle)
        assert result.update.isfinite().all()
        order = torch.randperm(m)
        shuffled = Example(candidates[order], example.descents[order], example.faulty, [])
        other = case.make(example.faulty)(shuffled.candidates, shuffled.oracle)
        scale = float(result.update.abs().max()) or 1.0
        digits = 1e-4 if scale < 1e-30 else 1e-5  # numbers this small have few
        torch.testing.assert_close(other.update / scale, result.update / scale, atol=digits, rtol=0)


@every_rule
def test_results_do_not_depend_on_the_order_of_the_workers(name: str) -> None:
    candidates, descents = torch.randn(11, 5), torch.randn(11)
    order = torch.randperm(11)
    own = torch.from_numpy(own_gradient(5)).float()
    rule = CASES[name].make(2)
    one = rule(candidates, FakeOracle(descents, own))
    other = rule(candidates[order], FakeOracle(descents[order], own))
    torch.testing.assert_close(one.update, other.update)
    assert torch.equal(one.kept[order], other.kept)
    if one.scores is not None and other.scores is not None:
        torch.testing.assert_close(one.scores[order], other.scores)


@every_rule
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_results_have_the_dtype_of_the_candidates(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    example = Example(torch.randn(11, 7).to(dtype), torch.randn(11), 2, [])
    result = CASES[name].make(2)(example.candidates, example.oracle)
    same = CASES[name].make(2)(example.candidates.float(), example.oracle)
    assert result.update.dtype == dtype
    torch.testing.assert_close(result.update.float(), same.update, rtol=torch.finfo(dtype).eps * 4 + 1e-5, atol=1e-3)
    assert torch.equal(result.kept, same.kept)


@every_rule
def test_candidates_need_not_be_contiguous(name: str) -> None:
    torch.manual_seed(2)
    example = Example(torch.randn(11, 7), torch.randn(11), 2, [])
    expected = CASES[name].make(2)(example.candidates, example.oracle)
    spread = torch.empty(7, 22).T[::2].copy_(example.candidates)
    assert not spread.is_contiguous()
    result = CASES[name].make(2)(spread, example.oracle)
    torch.testing.assert_close(result.update, expected.update)
    assert torch.equal(result.kept, expected.kept)


@every_rule
def test_rules_work_across_the_pieces_they_read_in(name: str) -> None:
    # Wider than the pieces that memory is read in, with a rest: what a few columns cannot show.
    torch.manual_seed(3)
    case, d = CASES[name], 70_001
    candidates, descents = torch.randn(7, d), torch.randn(7)
    candidates[0] += 3  # somebody stands out, so that no rule has to decide a tie in the last digit
    faulty = min(1, case.most(7))
    gradient = torch.from_numpy(own_gradient(d)).float()
    result = case.make(faulty)(candidates, FakeOracle(descents, gradient))
    if name == "dnc":  # looks at 10,000 of them
        assert result.kept.tolist() == [False] + [True] * 6
        return
    if name == "caf":  # its reference has a [d, d] matrix; the same in a basis of the rows
        return
    if name == "smea":
        assert result.kept.tolist() == [False] + [True] * 6
        return
    update, kept = case.reference(candidates.double().numpy(), descents.double().numpy(), faulty)
    np.testing.assert_allclose(result.update.double().numpy(), update, atol=1e-5)
    assert set(result.kept.nonzero().flatten().tolist()) == kept


@every_rule
def test_rules_raise_for_anything_but_a_matrix_of_floats(name: str) -> None:
    rule = CASES[name].make(0)
    wrongs = (torch.zeros(5), torch.zeros(5, 2, dtype=torch.int64), torch.zeros(0, 2), torch.zeros(5, 2, 2))
    for wrong in (*wrongs, torch.zeros(5, 0)):
        with pytest.raises(ValueError, match=r"\[workers, parameters\]"):
            rule(wrong, FakeOracle(torch.zeros(5), torch.zeros(2)))


@every_rule
def test_more_unusable_rows_than_the_rule_tolerates_make_no_update(name: str) -> None:
    case = CASES[name]
    faulty = min(2, case.most(11))
    most = faulty if case.lowers else case.most(11)
    assert case.make(faulty).most_faulty(11) == most
    candidates = torch.ones(11, 3)
    candidates[:most] = math.nan
    case.make(faulty)(candidates, FakeOracle(torch.zeros(11), torch.ones(3)))
    candidates[most] = math.nan
    with pytest.raises(zeno.TooFewUsable, match="usable candidates"):
        case.make(faulty)(candidates, FakeOracle(torch.zeros(11), torch.ones(3)))


@every_rule
def test_rules_raise_for_more_faulty_workers_than_they_can_tolerate(name: str) -> None:
    case = CASES[name]
    if not case.lowers:
        pytest.skip(f"{name} has no such parameter")
    for m in (1, 2, 7, 11):
        with pytest.raises(ValueError, match=rf"needs (more than|at least) .*Found {m} with (trim|faulty)=\d+.*Lower"):
            case.make(case.most(m) + 1 if case.most(m) >= 0 else 0)(
                torch.zeros(m, 2), FakeOracle(torch.zeros(m), torch.ones(2))
            )
    for wrong in (-1, 1.5, True):
        with pytest.raises(ValueError, match=r"(trim|faulty) as a whole number of at least 0"):
            case.make(wrong)  # type: ignore[arg-type]


@every_rule
def test_rules_are_frozen_dataclasses_with_equality(name: str) -> None:
    rule = CASES[name].make(2)
    assert rule == CASES[name].make(2)
    for parameter in fields(rule):  # type: ignore[arg-type]
        with pytest.raises(AttributeError):
            setattr(rule, parameter.name, 1)
