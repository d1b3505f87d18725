"""Candidates that are scored on arrival make the same update as all of them together."""

import math

import pytest
import torch

import zeno
from support.oracle import FakeOracle

ORACLE = FakeOracle(lambda rows: rows[:, 0].double().round())  # ties are common


@pytest.mark.parametrize("trim", [0, 3, 8])
@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_arrival_makes_no_difference(trim: int, seed: int) -> None:
    torch.manual_seed(seed)
    candidates = torch.randn(9, 4)
    if trim:
        candidates[4, 2] = math.nan
    rule = zeno.Zeno(trim=trim, rho=0)
    together = rule(candidates, ORACLE)
    arrivals = zeno.Arrivals(rule, 9, ORACLE)
    for worker in torch.randperm(9).tolist():
        arrivals.add(worker, candidates[worker])
    result = arrivals.result()
    torch.testing.assert_close(result.update, together.update)
    assert torch.equal(result.weights, together.weights)
    assert torch.equal(result.kept, together.kept)
    assert torch.equal(result.scores, together.scores)  # type: ignore[arg-type]
    assert arrivals._best is not None
    assert arrivals._best.shape == (9 - trim, 4)


def test_workers_that_do_not_come_use_up_trim() -> None:
    arrivals = zeno.Arrivals(zeno.Zeno(trim=2), 4, ORACLE)
    arrivals.add(3, torch.ones(2))
    with pytest.raises(zeno.TooFewUsable, match=r"needs 2 usable candidates. Found 1 of 4"):
        arrivals.result()
    buffer = 3 * torch.ones(2)
    arrivals.add(0, buffer)
    buffer.zero_()  # what arrives may be overwritten by what arrives next
    assert arrivals.result().update.tolist() == [2.0, 2.0]


def test_each_worker_comes_once_and_with_as_many_numbers() -> None:
    arrivals = zeno.Arrivals(zeno.Zeno(trim=1), 4, ORACLE)
    arrivals.add(1, torch.ones(2))
    with pytest.raises(ValueError, match="Found worker 1, which was added before"):
        arrivals.add(1, torch.ones(2))
    for worker in (-1, 4):
        with pytest.raises(ValueError, match=f"Found worker {worker}, which is not one of 4"):
            arrivals.add(worker, torch.ones(2))
    with pytest.raises(ValueError, match=r"needs 2 numbers from worker 2. Found \[1\]"):
        arrivals.add(2, torch.ones(1))


def test_a_score_of_nan_is_not_kept() -> None:
    arrivals = zeno.Arrivals(zeno.Zeno(trim=1), 2, FakeOracle(lambda c: torch.tensor([math.nan])))
    assert arrivals.add(0, torch.ones(2)) == -math.inf
    with pytest.raises(zeno.TooFewUsable):
        arrivals.result()
