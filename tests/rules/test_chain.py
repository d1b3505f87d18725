"""Pre-aggregators never make the rows they stand for: what comes out has to be as if they did."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

import zeno
from support.oracle import FakeOracle
from zeno.rules import PRE_AGGREGATORS, Chain, PreAggregator


def nnm(rows: Tensor, faulty: int) -> Tensor:
    distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.stack([rows[row.argsort()[: len(rows) - faulty]].mean(dim=0) for row in distances])


def bucketing(rows: Tensor, step: int) -> Tensor:
    order = np.random.default_rng((0, step)).permutation(len(rows))
    return torch.stack([rows[order[i : i + 3].tolist()].mean(dim=0) for i in range(0, len(rows), 3)])


def clip(rows: Tensor, norm: float) -> Tensor:
    return torch.stack([row * min(1.0, norm / float(row.norm())) for row in rows])


def arc(rows: Tensor, faulty: int) -> Tensor:
    n = len(rows)
    num = math.floor(2 * faulty / n * (n - faulty))
    return clip(rows, float(sorted(row.norm() for row in rows)[n - num - 1]))


BEFORE: dict[str, tuple[PreAggregator, Callable[[Tensor], Tensor]]] = {
    "nnm": (zeno.NNM(faulty=2), lambda rows: nnm(rows, 2)),
    "bucketing": (zeno.Bucketing(size=3, seed=0), lambda rows: bucketing(rows, 0)),
    "clip": (zeno.Clip(norm=2.0), lambda rows: clip(rows, 2.0)),
    "arc": (zeno.ARC(faulty=2), lambda rows: arc(rows, 2)),
}
AFTER: dict[str, zeno.Rule] = {
    "mean": zeno.Mean(),
    "median": zeno.Median(),
    "trimmed_mean": zeno.TrimmedMean(trim=1),
    "meamed": zeno.MeaMed(faulty=1),
    "phocas": zeno.Phocas(trim=1),
    "krum": zeno.Krum(faulty=0),
    "multi_krum": zeno.MultiKrum(faulty=0, keep=2),
    "bulyan": zeno.Bulyan(faulty=0),
    "geometric_median": zeno.GeometricMedian(1e-8),
    "centered_clipping": zeno.CenteredClipping(radius=0.5),
    "mda": zeno.MDA(faulty=1),
    "smea": zeno.SMEA(faulty=1),
    "cge": zeno.CGE(faulty=1),
    "caf": zeno.CAF(faulty=1),
    "dnc": zeno.DnC(faulty=1),
    "signguard": zeno.SignGuard(),
    "monna": zeno.MoNNA(faulty=1),
    "fltrust": zeno.FLTrust(),
    "bant": zeno.BANT(),
    "auto_bant": zeno.AutoBANT(),
    "bygars": zeno.ByGARS(),
    "fedgreed": zeno.FedGreed(),
    "zeno": zeno.Zeno(trim=1),
    "zenopp": zeno.ZenoPP(),
    "afl_guard": zeno.AFLGuard(),
}
PER_COORDINATE = ("median", "trimmed_mean", "meamed", "phocas", "bulyan")  # which weigh each coordinate differently


def oracle() -> FakeOracle:
    return FakeOracle(lambda rows: rows[:, 0].double(), torch.ones(6))


def test_every_part_of_a_chain_is_tested() -> None:
    assert set(BEFORE) == set(PRE_AGGREGATORS)
    assert set(AFTER) == set(zeno.RULES) - {"zeno_auto", "server_alone"}  # see test_zeno_auto.py


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("after", AFTER)
def test_a_chain_is_the_rule_on_the_rows_that_the_part_before_it_makes(before: str, after: str) -> None:
    if before in ("arc", "clip") and after == "cge":
        pytest.skip("rows that were clipped have the same norm, and the last digit says which one CGE drops")
    torch.manual_seed(1)
    candidates = torch.randn(11, 6)
    part, made = BEFORE[before]
    result = zeno.chain(part, AFTER[after])(candidates, oracle())
    expected = AFTER[after](made(candidates), oracle())
    torch.testing.assert_close(result.update, expected.update, atol=1e-5, rtol=1e-5)
    assert result.kept.shape == (11,)
    assert torch.equal(result.kept, result.weights != 0)
    if after not in PER_COORDINATE:
        torch.testing.assert_close(result.weights @ candidates.double(), result.update.double(), atol=1e-5, rtol=1e-5)
    if result.scores is not None and expected.scores is not None:
        assert result.scores.shape == (11,)
        if len(expected.scores) == 11:  # one row for each worker
            torch.testing.assert_close(result.scores, expected.scores, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("before", BEFORE)
def test_unusable_rows_are_out_before_anything_is_mixed(before: str) -> None:
    torch.manual_seed(2)
    candidates = torch.randn(11, 6)
    candidates[4] = math.nan
    usable = [i for i in range(11) if i != 4]
    rule = zeno.chain(BEFORE[before][0], zeno.TrimmedMean(trim=1))
    tolerating_one_less: dict[str, PreAggregator] = {"nnm": zeno.NNM(faulty=1), "arc": zeno.ARC(faulty=1)}
    lowered = tolerating_one_less.get(before, BEFORE[before][0])
    alone = zeno.chain(lowered, zeno.TrimmedMean(trim=0))(candidates[usable])
    result = rule(candidates)
    torch.testing.assert_close(result.update, alone.update)
    assert not result.kept[4]


def test_scores_and_kept_are_those_of_the_workers() -> None:
    candidates = torch.tensor([[0.0], [0.1], [0.2], [0.3], [9.0], [9.1]])
    result = zeno.chain(zeno.NNM(faulty=2), zeno.Krum(faulty=1))(candidates)
    assert result.scores is not None
    assert result.kept.tolist() == [True] * 4 + [False] * 2  # Krum took a mean of the first four
    assert result.update.tolist() == pytest.approx([0.15])
    buckets = zeno.chain(zeno.Bucketing(size=2), zeno.CGE(faulty=1))(candidates)
    assert buckets.scores is not None
    for i in range(6):  # two workers share each bucket, and its score
        assert (buckets.scores == buckets.scores[i]).sum() == 2
    assert buckets.kept.sum() == 4


def test_states_of_all_parts_are_handed_on() -> None:
    candidates = torch.randn(8, 3)
    rule = zeno.chain(zeno.Bucketing(size=2, seed=7), zeno.Clip(1.0), zeno.CenteredClipping(radius=0.1))
    first = rule(candidates)
    second = rule(candidates, state=first.state)
    assert isinstance(first.state, tuple)
    assert isinstance(second.state, tuple)
    assert (first.state[0], second.state[0]) == ((7, 1), (7, 2))
    assert torch.equal(second.state[2], second.update)
    largest_bucket = zeno.chain(zeno.Bucketing(size=2), zeno.CGE(faulty=3))
    kept = {tuple(largest_bucket(candidates, state=((7, step), None)).kept.tolist()) for step in range(9)}
    assert len(kept) > 1, "the same buckets at every step"


@pytest.mark.parametrize("rule", [zeno.BANT(), zeno.ByGARS()])
def test_what_is_remembered_of_workers_goes_into_the_row_that_stands_for_them(rule: zeno.Rule) -> None:
    torch.manual_seed(3)
    candidates = torch.randn(7, 6)
    candidates[2] = math.nan
    in_buckets = zeno.chain(zeno.Bucketing(size=3, seed=0), rule)
    first = in_buckets(candidates, oracle())
    assert isinstance(first.state, tuple)
    assert first.state[1].shape == (7,)
    assert first.state[1][2] == rule(candidates, oracle()).state[2]  # type: ignore[index]
    second = in_buckets(candidates, oracle(), first.state)
    torch.testing.assert_close(
        second.weights @ candidates.nan_to_num(0).double(), second.update.double(), atol=1e-5, rtol=0
    )
    assert not torch.equal(second.state[1], first.state[1])  # type: ignore[index]


@dataclass(frozen=True)
class FirstRow(zeno.Rule):
    """A user's rule: the first row, for whatever reason."""

    samples: int = 7
    tolerates: int = 2
    scores_on_arrival: bool = True

    def __call__(self, candidates: Tensor, oracle: zeno.Oracle | None = None, state: object = None) -> zeno.Aggregate:
        assert candidates.isfinite().all()
        rows = torch.arange(len(candidates))
        count = state + 1 if isinstance(state, int) else 1
        return zeno.Aggregate(candidates[0], (rows == 0).double(), -rows.double(), count, own=0.25, note="by chance")


def test_a_users_rule_that_overrides_only_call_can_end_a_chain() -> None:
    candidates = torch.tensor([[math.nan, 1.0], [3.0, 4.0], [30.0, 40.0], [0.3, 0.4]])
    result = zeno.chain(zeno.Clip(1.0), FirstRow())(candidates)
    assert result.update.tolist() == pytest.approx([0.6, 0.8])
    assert result.weights.tolist() == pytest.approx([0, 0.2, 0, 0])  # of 5, clipped to 1
    assert result.kept.tolist() == [False, True, False, False]


def test_a_chain_passes_on_all_that_its_last_rule_states_and_returns() -> None:
    rule = zeno.chain(zeno.Clip(1e9), FirstRow(samples=9))
    assert (rule.samples, rule.tolerates, rule.scores_on_arrival) == (9, 2, False)
    candidates = torch.tensor([[math.nan], [1.0], [2.0], [3.0]])
    result = rule(candidates)
    assert result.scores is not None
    assert result.scores.tolist() == [-math.inf, 0.0, -1.0, -2.0]
    assert (result.own, result.note) == (0.25, "by chance")
    assert result.state == (None, 1)
    assert rule(candidates, state=result.state).state == (None, 2)
    assert zeno.chain(zeno.NNM(1), zeno.Zeno(trim=1, batch_size=6)).samples == 6
    assert not zeno.chain(zeno.NNM(1), zeno.Zeno(trim=1)).scores_on_arrival
    assert zeno.chain(zeno.NNM(1), zeno.Krum(faulty=3)).tolerates == 3
    assert zeno.chain(zeno.NNM(1), zeno.Median()).tolerates is None


@pytest.mark.parametrize("before", [zeno.Bucketing(size=2), zeno.Clip(1.0)])
def test_a_chain_tolerates_as_many_unusable_candidates_as_its_rule(before: PreAggregator) -> None:
    few_are_left = torch.ones(9, 6)
    few_are_left[:5] = math.nan
    for rule in (zeno.Median(), zeno.GeometricMedian(), zeno.Mean(), zeno.SignGuard()):
        with pytest.raises(zeno.TooFewUsable, match=r"needs 5 usable candidates. Found 4 of 9"):
            zeno.chain(before, rule)(few_are_left)
        assert zeno.chain(before, rule).most_faulty(9) == 4
    few_are_left[:8] = math.nan
    assert zeno.chain(before, zeno.FLTrust())(few_are_left, oracle()).kept.sum() == 1
    assert zeno.chain(before, zeno.Zeno(trim=8))(few_are_left, oracle()).kept.sum() == 1


def test_a_rule_that_overrides_neither_entry_point_says_what_to_override() -> None:
    class Empty(zeno.Rule):
        pass

    with pytest.raises(TypeError, match=r"Empty has no way to combine candidates. Override `aggregate"):
        Empty()(torch.ones(3, 2))
    with pytest.raises(TypeError, match="Stating needs a default for samples, or samples as a property"):

        class Stating(zeno.Rule):
            samples: int

    with pytest.raises(NotImplementedError, match="before"):
        zeno.chain(PreAggregator(), zeno.Mean())(torch.ones(3, 2))


def test_parts_that_cannot_be_chained_raise() -> None:
    with pytest.raises(ValueError, match=r"needs pre-aggregators such as NNM before its last part. Found Mean\("):
        zeno.chain(zeno.Mean(), zeno.Median())
    with pytest.raises(ValueError, match=r"needs a rule such as Mean\(\) at its end. Found NNM\(faulty=2\)"):
        zeno.chain(zeno.NNM(faulty=2))
    for wrong in (
        (),
        (zeno.NNM, zeno.Mean()),
        (zeno.Clip(1.0), zeno.Mean),
        (zeno.chain(zeno.Clip(1.0), zeno.Mean()),) * 2,
    ):
        with pytest.raises(ValueError, match="A chain needs"):
            zeno.chain(*wrong)
    nested = zeno.chain(zeno.NNM(2), zeno.chain(zeno.Clip(1.0), zeno.Mean()))
    assert nested == zeno.chain(zeno.NNM(2), zeno.Clip(1.0), zeno.Mean())
    assert zeno.chain(zeno.Mean()) == zeno.Mean()
    assert isinstance(zeno.chain(zeno.Clip(1.0), zeno.Mean()), Chain)


@pytest.mark.parametrize("part", [zeno.Clip(1.0), zeno.ARC(faulty=2)], ids=repr)
@pytest.mark.parametrize("seed", range(10))
def test_the_norm_of_a_short_row_is_exact_beside_long_ones_that_agree(part: zeno.PreAggregator, seed: int) -> None:
    """Products around a row in the crowd lose it: FLTrust would divide by a norm of 0."""
    torch.manual_seed(seed)
    g = torch.randn(1000)
    candidates = g * (1 + 0.05 * torch.randn(10, 1000))
    candidates[3] *= 1e-5
    seen: list[Tensor] = []

    class Looking(zeno.FLTrust):
        def aggregate(self, rows: zeno.Rows, oracle: zeno.Oracle | None, state: object) -> zeno.Aggregate:
            seen.extend([rows.squared_norms(), rows.tensor().double().square().sum(dim=1)])
            return super().aggregate(rows, oracle, state)

    update = zeno.chain(part, Looking())(candidates, FakeOracle(gradient=g)).update
    torch.testing.assert_close(seen[0], seen[1], rtol=1e-5, atol=0)
    torch.testing.assert_close(update, g, rtol=0, atol=0.3)
