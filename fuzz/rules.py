"""Every rule and chain, on candidates of which as many are hostile as the rule tolerates."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

import zeno
from fuzz.gradients import DTYPES, honest, hostile
from zeno.rules import PRE_AGGREGATORS, RULES
from zeno.rules.rule import TooFewUsable
from zeno.studies.compare import most_tolerant
from zeno.training.dry_run import try_rule

FACTOR = 1000.0  # no update is longer than this times the longest honest gradient
RADIUS = 100.0  # and what rules with a fixed radius may add
NO_BOUND = ("mean", "bygars", "bant", "auto_bant", "fedgreed", "dnc")  # these promise none
REMEMBERS = ("zenopp",)  # its updates are as long as a gradient of the server from a step before


class QuadraticOracle:
    """The loss <g, x> + |x|^2 / 2 at x = 0, and its exact answers."""

    lr: float | Tensor = 0.1

    def __init__(self, gradient: Tensor) -> None:
        self.here, self.dtype = gradient.double(), gradient.dtype

    def descents(self, candidates: Tensor | Sequence[Tensor]) -> Tensor:
        steps = self.lr * torch.stack(list(candidates)).double()
        return steps @ self.here - steps.square().sum(dim=1) / 2

    def gradient(self, after: Tensor | None = None) -> Tensor:
        return (self.here if after is None else self.here - self.lr * after.double()).to(self.dtype)

    def half_gradients(self) -> Tensor:
        return self.here.to(self.dtype).repeat(2, 1)


def rules(rng: np.random.Generator) -> None:
    m, d = int(rng.integers(1, 24)), int(rng.choice([1, 2, 7, 100, 400]))
    dtype = DTYPES[rng.choice(len(DTYPES), p=[0.6, 0.2, 0.1, 0.1])]
    text = _rule(rng)
    m = min(m, 15) if text.endswith("smea") else m  # it compares all groups: seconds for 22
    found = rule_and_tolerated(text, m, int(rng.integers(0, m)))
    if found is None:
        return
    rule, q = found
    state: object = None
    longest = 0.0
    for _ in range(int(rng.choice([1, 1, 3]))):
        good = honest(rng, m - q, d, dtype)
        sent = torch.cat([good, hostile(rng, good, q)])[torch.from_numpy(rng.permutation(m))]
        longest = max(longest if text.endswith(REMEMBERS) else 0.0, float(good.double().norm(dim=1).max()))
        try:
            state = check(text, rule, good, sent, state, longest)
        except TooFewUsable:
            return


def rule_and_tolerated(text: str, m: int, faulty: int) -> tuple[zeno.Rule, int] | None:
    """The rule, and up to `faulty`, how many faulty ones of m workers it tolerates; None if it needs more workers."""
    rule = most_tolerant(text, {"trim": faulty}, m)
    try:
        try_rule(rule, m)
    except ValueError:
        return None
    return rule, min(faulty, _tolerated(rule, text, m))


def check(
    text: str, rule: zeno.Rule, good: Tensor, sent: Tensor, state: object = None, longest: float | None = None
) -> object:
    """One step of the rule on what was sent [m, d], of which the honest rows are `good`; returns its state.

    `longest` is the length of the longest honest gradient that matters, by default of this step.
    """
    before = sent.clone()
    found = rule(sent, QuadraticOracle(good.double().mean(dim=0).to(good.dtype)), state)
    assert torch.equal(before.nan_to_num(7), sent.nan_to_num(7)), f"{text} changed its candidates"
    assert found.update.shape == good.shape[1:], f"{text}: {found.update.shape}"
    assert found.update.dtype == good.dtype, f"{text}: {found.update.dtype}"
    assert bool(found.update.isfinite().all()), f"{text}, {good.dtype}: the update is not finite"
    if text.rsplit("+")[-1] not in NO_BOUND:
        longest = float(good.double().norm(dim=1).max()) if longest is None else longest
        length = float(found.update.double().norm())
        what = f"{text}, {good.dtype}, {len(sent) - len(good)} of {len(sent)}: moved {length:.3g} by {longest:.3g}"
        assert length <= FACTOR * longest + RADIUS, what
    return found.state


def _tolerated(rule: zeno.Rule, text: str, m: int) -> int:
    if rule.tolerates is not None:
        return rule.tolerates
    rows = -(-m // 2) if "bucketing" in text else m
    return (rows - 1) // 2


def _rule(rng: np.random.Generator) -> str:
    """A rule, or a chain."""
    name = str(rng.choice(list(RULES)))
    before = ["clip", "arc"] if name == "zeno_auto" else list(PRE_AGGREGATORS)  # it raises for mixtures
    parts = [str(part) for part in rng.choice(before, size=int(rng.choice([0, 0, 1, 2])), replace=False)]
    return "+".join([*parts, name]).replace("clip+", "clip(10)+")
