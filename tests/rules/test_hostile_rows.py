"""Every rule under rows that hypothesis makes up: the update is finite, and within the bound that fuzzing checks."""

from typing import NamedTuple

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import zeno
from fuzz.gradients import honest
from fuzz.rules import check, rule_and_tolerated
from zeno.rules import RULES
from zeno.rules.rule import TooFewUsable

CHAINS = ("bucketing+krum", "bucketing+geometric_median", "nnm+trimmed_mean", "arc+fltrust", "clip(10)+zeno_auto")
DTYPES = (torch.float32, torch.float64, torch.float16)


class Case(NamedTuple):
    text: str
    rule: zeno.Rule
    good: Tensor  # [m - q, d]
    sent: Tensor  # [m, d]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """As many hostile rows as the rule tolerates, or fewer, among honest ones."""
    text = draw(st.one_of(st.sampled_from(list(RULES)), st.sampled_from(CHAINS)))
    m, d = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    found = rule_and_tolerated(text, m, draw(st.integers(0, m - 1)))
    assume(found is not None)
    assert found is not None
    rule, q = found
    good = honest(np.random.default_rng(draw(st.integers(0, 1000))), m - q, d, draw(st.sampled_from(DTYPES)))
    rows = list(good.double())
    while len(rows) < m:
        rows += draw(hostile_rows(good, rows))
    sent = torch.stack(rows[:m]).to(good.dtype)
    return Case(text, rule, good, sent[draw(st.permutations(range(m)))])


def hostile_rows(good: Tensor, before: list[Tensor]) -> st.SearchStrategy[list[Tensor]]:
    """One or two rows [d] in float64, of any numbers, or made from the rows before them."""
    limit, d, mean = torch.finfo(good.dtype).max, good.shape[1], good.double().mean(dim=0)
    finite = st.floats(-limit, limit)  # subnormal and extreme ones too
    alone = st.one_of(
        st.lists(finite, min_size=d, max_size=d).map(lambda numbers: torch.tensor(numbers, dtype=torch.float64)),
        st.one_of(finite, st.sampled_from([torch.nan, torch.inf])).map(lambda value: torch.full_like(mean, value)),
        finite.map(lambda factor: factor * mean),
        st.sampled_from(before),  # equal rows
    )
    large = st.floats(1e3, min(limit, 1e16)).map(lambda size: size * good[-1].double())
    cancelling = st.builds(lambda row, rest: [row, rest * mean.sign() - row], large, st.floats(0, 1e8))
    return st.one_of(alone.map(lambda row: [row]), cancelling)


@given(cases())
@settings(max_examples=500, derandomize=True, database=None, deadline=None)
def test_no_update_is_beyond_the_bound_of_its_rule(case: Case) -> None:
    try:
        check(*case)
    except TooFewUsable:
        return
