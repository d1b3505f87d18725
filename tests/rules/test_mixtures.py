"""Mixtures whose parts cancel, and the order of buckets, which no worker may know."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

import zeno
from support.oracle import FakeOracle
from zeno.rules import PreAggregator
from zeno.rules.linalg.geometry import Geometry
from zeno.rules.rows import Rows

M, D = 20, 1000
IN_BUCKETS = np.random.default_rng((0, 0)).permutation(M).tolist()  # the order that Bucketing(seed=0) starts with
AFTER: dict[str, Sequence[PreAggregator | zeno.Rule]] = {
    "krum": [zeno.Krum(faulty=2)],
    "multi_krum": [zeno.MultiKrum(faulty=2)],
    "bulyan": [zeno.Bulyan(faulty=1)],
    "centered_clipping": [zeno.CenteredClipping(radius=10.0)],
    "cge": [zeno.CGE(faulty=2)],
    "geometric_median": [zeno.GeometricMedian()],
    "mda": [zeno.MDA(faulty=2)],
    "caf": [zeno.CAF(faulty=2)],
    "monna": [zeno.MoNNA(faulty=2)],
    "fltrust": [zeno.FLTrust()],
    "bygars": [zeno.ByGARS()],
    "zeno": [zeno.Zeno(trim=2, score="first_order")],
    "clip+mean": [zeno.Clip(norm=50.0), zeno.Mean()],
    "arc+fltrust": [zeno.ARC(faulty=2), zeno.FLTrust()],
    "nnm+trimmed_mean": [zeno.NNM(faulty=2), zeno.TrimmedMean(trim=2)],
}


def cancelling(seed: int, size: float, rest: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Two workers of one bucket send H and -H + rest; the others 1 + noise."""
    random = torch.Generator().manual_seed(seed)
    candidates = 1 + torch.randn(M, D, generator=random, dtype=dtype)
    huge = size * torch.randn(D, generator=random, dtype=dtype)
    i, j = IN_BUCKETS[:2]
    candidates[i], candidates[j] = huge, -huge + rest * torch.randn(D, generator=random, dtype=dtype)
    return candidates


def oracle(dtype: torch.dtype) -> FakeOracle:
    return FakeOracle(None, torch.ones(D, dtype=dtype))


def buckets(candidates: Tensor) -> Tensor:
    return torch.stack([candidates[IN_BUCKETS[i : i + 2]].double().mean(dim=0) for i in range(0, M, 2)])


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize(
    ("size", "rest", "dtype"),
    [(1e12, 1e7, torch.float32), (1e25, 1e20, torch.float32), (1e12, 1e3, torch.float64)],
    ids=["1e12", "1e25", "float64"],
)
def test_parts_that_cancel_in_a_bucket_do_not_move_the_update(
    after: str, size: float, rest: float, dtype: torch.dtype
) -> None:
    rule = zeno.chain(zeno.Bucketing(size=2, seed=0), *AFTER[after])
    alone = zeno.chain(*AFTER[after])
    for seed in range(12):
        candidates = cancelling(seed, size, rest, dtype)
        result = rule(candidates, oracle(dtype))
        expected = alone(buckets(candidates), oracle(torch.float64))
        torch.testing.assert_close(result.update.double(), expected.update, atol=1e-3, rtol=1e-3)
        assert result.kept.shape == (M,)


def test_norms_and_distances_of_mixtures_that_cancel_are_those_of_the_formed_rows() -> None:
    candidates = cancelling(0, 1e12, 1e7)
    made = buckets(candidates)
    weights = torch.zeros(M // 2, M, dtype=torch.float64)
    for bucket in range(M // 2):
        weights[bucket, IN_BUCKETS[2 * bucket : 2 * bucket + 2]] = 0.5

    def rows() -> Rows:
        return Rows(Geometry(candidates), zeno.Mean()).mixtures(weights)

    assert rows().size == M // 2
    torch.testing.assert_close(rows().squared_norms(), made.square().sum(dim=1), rtol=1e-4, atol=0)
    torch.testing.assert_close(rows().dots(torch.ones(D)), made.sum(dim=1), rtol=1e-3, atol=1e-1)
    exact = torch.stack([(made - row).square().sum(dim=1) for row in made])
    torch.testing.assert_close(rows().squared_distances(), exact, rtol=1e-4, atol=0)
    centre = torch.full((D,), 0.5)
    around = made - centre.double()
    products = rows().products_around(centre)
    torch.testing.assert_close(products.diagonal(), around.square().sum(dim=1), rtol=1e-4, atol=0)
    mean = rows().average(torch.arange(M // 2) < 2)
    torch.testing.assert_close(mean.update.double(), made[:2].mean(dim=0), rtol=1e-4, atol=1.0)
    assert mean.weights.tolist() == [0.25 if worker in IN_BUCKETS[:4] else 0 for worker in range(M)]


def test_mixtures_whose_parts_do_not_cancel_are_not_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Rows, "tensor")
    candidates = torch.randn(M, D)  # no direction in common
    candidates[0] *= 1e12
    for after in AFTER.values():
        if after[-1] != zeno.Bulyan(faulty=1):
            zeno.chain(zeno.Bucketing(size=2), zeno.NNM(faulty=1), *after)(candidates, oracle(torch.float32))


@pytest.mark.parametrize("rule", [zeno.chain(zeno.Bucketing(size=2), zeno.Krum(faulty=1)), zeno.DnC(2, 1, 2)])
def test_what_a_rule_draws_is_a_secret_that_its_state_keeps(rule: zeno.Rule) -> None:
    torch.manual_seed(0)
    candidates = torch.randn(M, 50)

    def kept(state: object) -> list[bool]:
        return rule(candidates, state=state).kept.tolist()

    assert len({tuple(kept(None)) for _ in range(20)}) > 1, "everybody can tell the order"
    state = rule(candidates).state
    assert kept(state) == kept(state)
    assert rule(candidates, state=state).state == rule(candidates, state=state).state != state
    assert rule.first_state(lambda: 5) == rule.first_state(lambda: 5) != rule.first_state(lambda: 6)
    assert kept(rule.first_state(lambda: 5)) == kept(rule.first_state(lambda: 5))


def test_a_seed_fixes_what_a_rule_draws() -> None:
    candidates = torch.randn(M, 50)
    for rule in (zeno.chain(zeno.Bucketing(seed=4), zeno.Krum(faulty=1)), zeno.DnC(2, 1, 2, seed=4)):
        assert torch.equal(rule(candidates).update, rule(candidates, state=rule.first_state(lambda: 9)).update)


def test_rows_that_were_formed_belong_to_nobody_in_particular() -> None:
    """ARC measures the buckets, one of which has parts that cancel. So they are formed before ZenoAuto sees them."""
    rows = torch.randn(8, 50, generator=torch.Generator().manual_seed(0))
    rows[0] = 1e12 * rows[0]
    rows[1:] = -rows[0] + 1e3 * rows[1:]  # whichever is in its bucket
    rule = zeno.chain(zeno.Bucketing(size=2, seed=0), zeno.ARC(faulty=1), zeno.ZenoAuto())
    with pytest.raises(ValueError, match="needs one row for each candidate, to know whose it is"):
        rule(rows, FakeOracle(gradient=torch.ones(50)))
