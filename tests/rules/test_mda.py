"""MDA's search: bounded, and honest about it."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

import zeno
from zeno.rules import mda
from zeno.rules.mda import smallest_ball, tightest


def triangles(m: int, faulty: int, side: float) -> Tensor:
    """Colluding workers in triangles around the mean of the others: of each, two have to be left out, whichever."""
    random = torch.Generator().manual_seed(0)
    d = 200
    candidates = 1 + torch.randn(m, d, generator=random)
    mean = candidates[faulty:].mean(dim=0)
    for first in range(0, faulty - 2, 3):
        across = torch.linalg.qr(torch.randn(d, 2, generator=random)).Q.T
        for corner, angle in enumerate((0, 2 * math.pi / 3, 4 * math.pi / 3)):
            direction = math.cos(angle) * across[0] + math.sin(angle) * across[1]
            candidates[first + corner] = mean + side / 3**0.5 * direction
    return candidates


def diameter(candidates: Tensor, kept: Tensor) -> float:
    return float(torch.pdist(candidates[kept].double()).max())


@pytest.mark.parametrize(("m", "faulty"), [(80, 36), (100, 45)])
def test_colluding_workers_do_not_stall_the_search_and_the_aggregate_says_what_it_found(m: int, faulty: int) -> None:
    candidates = triangles(m, faulty, side=22.0)  # just wider than the others, who are 20 apart
    result = zeno.MDA(faulty)(candidates)
    assert result.note == "MDA gave up its search: the diameter of the group is at most twice the smallest one"
    assert int(result.kept.sum()) == m - faulty
    assert diameter(candidates, result.kept) <= 2 * diameter(candidates, torch.arange(m) >= faulty)
    assert zeno.chain(zeno.Clip(1e9), zeno.MDA(faulty))(candidates).note == result.note


def test_ordinary_candidates_are_searched_exactly() -> None:
    torch.manual_seed(0)
    for m, faulty in ((20, 9), (60, 12), (80, 36)):
        candidates = 1 + torch.randn(m, 200)
        assert zeno.MDA(faulty)(candidates).note is None
        candidates[:faulty] *= -10
        result = zeno.MDA(faulty)(candidates)
        assert result.note is None
        assert result.kept.tolist() == [False] * faulty + [True] * (m - faulty)


@pytest.mark.parametrize("most", [0, 1, 2, 5, 100])
def test_a_search_that_is_given_up_finds_a_group_of_at_most_twice_the_least_diameter(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mda, "MOST_NODES", most)
    rng = np.random.default_rng(most)
    given_up = 0
    for _ in range(30):
        points = rng.standard_normal((9, 2))
        distances = ((points[:, None] - points) ** 2).sum(axis=2)
        least = min(distances[np.ix_(group, group)].max() for group in itertools.combinations(range(9), 5))
        kept, exact = tightest(distances, 4)
        assert kept.sum() == 5
        assert distances[kept][:, kept].max() <= 4 * least * (1 + 1e-12)  # of squares
        assert distances[kept][:, kept].max() == least or not exact
        given_up += not exact
        ball = smallest_ball(distances, 4)
        assert ball.sum() == 5
        assert distances[ball][:, ball].max() <= 4 * least * (1 + 1e-12)
    assert (given_up > 0) == (most < 100)
