"""Candidates that are scored on arrival make the same update as all of them together."""

import math
from typing import Any

import numpy as np
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
    arrivals = zeno.Arrivals(rule, 9, ORACLE, torch.zeros(4))
    for worker in torch.randperm(9).tolist():
        arrivals.add(worker, candidates[worker])
    result = arrivals.result()
    torch.testing.assert_close(result.update, together.update)
    assert torch.equal(result.weights, together.weights)
    assert torch.equal(result.kept, together.kept)
    assert torch.equal(result.scores, together.scores)  # type: ignore[arg-type]
    assert arrivals._memory.shape == (9 - trim + 1, 4)


def test_workers_that_do_not_come_use_up_trim() -> None:
    arrivals = zeno.Arrivals(zeno.Zeno(trim=2), 4, ORACLE, torch.zeros(2))
    arrivals.add(3, torch.ones(2))
    with pytest.raises(zeno.TooFewUsable, match=r"needs 2 usable candidates. Found 1 of 4"):
        arrivals.result()
    buffer = 3 * torch.ones(2)
    arrivals.add(0, buffer)
    buffer.zero_()  # what arrives may be overwritten by what arrives next
    assert arrivals.result().update.tolist() == [2.0, 2.0]


def test_each_worker_comes_once() -> None:
    arrivals = zeno.Arrivals(zeno.Zeno(trim=1), 4, ORACLE, torch.zeros(2))
    arrivals.add(1, torch.ones(2))
    with pytest.raises(ValueError, match="Found worker 1, which was added before"):
        arrivals.add(1, torch.ones(2))
    for worker in (-1, 4):
        with pytest.raises(ValueError, match=f"Found worker {worker}, which is not one of 4"):
            arrivals.add(worker, torch.ones(2))


WRONG: dict[str, Any] = {
    "too few numbers": torch.ones(1),
    "another shape": torch.ones(2, 1),
    "integers": torch.ones(2, dtype=torch.long),
    "not a number": torch.tensor([1.0, math.nan]),
    "too large for float32": torch.tensor([1.0, 1e300], dtype=torch.float64),
    "a string": "hello",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_arrives_first_does_not_decide_what_the_others_must_send(wrong: str) -> None:
    arrivals = zeno.Arrivals(zeno.Zeno(trim=1, rho=0), 7, ORACLE, torch.zeros(2))
    assert arrivals.add(4, WRONG[wrong]) == -math.inf
    for worker in (0, 1, 2, 3, 5, 6):
        assert arrivals.add(worker, np.array([1.0, worker])) == 1.0
    result = arrivals.result()
    assert result.kept.tolist() == [True, True, True, True, False, True, True]
    torch.testing.assert_close(result.update, torch.tensor([1.0, 17 / 6]))


def test_what_is_averaged_is_what_was_scored() -> None:
    """A worker that shares the memory of its gradient writes to it while it is being scored, and later."""
    shared = torch.ones(2)

    def descents(rows: torch.Tensor) -> torch.Tensor:
        shared.fill_(math.nan)
        return rows[:, 0].double()

    arrivals = zeno.Arrivals(zeno.Zeno(trim=0, rho=0), 2, FakeOracle(descents), torch.zeros(2))
    assert arrivals.add(0, shared) == 1.0
    arrivals.add(1, 3 * torch.ones(2))
    assert arrivals.result().update.tolist() == [2.0, 2.0]


def test_a_vector_says_what_candidates_look_like() -> None:
    with pytest.raises(ValueError, match=r"needs like as a vector, such as the parameters. Found \[3, 2\]"):
        zeno.Arrivals(zeno.Zeno(trim=1), 3, ORACLE, torch.zeros(3, 2))


def test_a_score_of_nan_is_not_kept() -> None:
    arrivals = zeno.Arrivals(zeno.Zeno(trim=1), 2, FakeOracle(lambda c: torch.tensor([math.nan])), torch.zeros(2))
    assert arrivals.add(0, torch.ones(2)) == -math.inf
    with pytest.raises(zeno.TooFewUsable):
        arrivals.result()
