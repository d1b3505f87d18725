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
    q = int(rng.integers(0, m))
    dtype = DTYPES[rng.choice(len(DTYPES), p=[0.6, 0.2, 0.1, 0.1])]
    name, text = _rule(rng)
    rule = most_tolerant(text, {"trim": q}, m)
    try:
        try_rule(rule, m)
    except ValueError:  # it needs more workers
        return
    q = min(q, _tolerated(rule, text, m))
    state: object = None
    for _ in range(int(rng.choice([1, 1, 3]))):
        good = honest(rng, m, d, dtype)
        sent = torch.cat([good[: m - q], hostile(rng, good[: m - q], q)])[torch.from_numpy(rng.permutation(m))]
        before = sent.clone()
        try:
            found = rule(sent, QuadraticOracle(good.double().mean(dim=0).to(dtype)), state)
        except TooFewUsable:
            return
        assert torch.equal(before.nan_to_num(7), sent.nan_to_num(7)), f"{text} changed its candidates"
        assert found.update.shape == (d,), f"{text}: {found.update.shape}"
        assert found.update.dtype == dtype, f"{text}: {found.update.dtype}"
        state = found.state
        if name in NO_BOUND:
            continue
        longest = float(good[: m - q].double().norm(dim=1).max())
        length = float(found.update.double().norm())
        assert length <= FACTOR * longest + RADIUS, f"{text}, {dtype}, {q} of {m}: moved {length:.3g} by {longest:.3g}"


def _tolerated(rule: zeno.Rule, text: str, m: int) -> int:
    if rule.tolerates is not None:
        return rule.tolerates
    rows = -(-m // 2) if "bucketing" in text else m
    return (rows - 1) // 2


def _rule(rng: np.random.Generator) -> tuple[str, str]:
    """The name of a rule, and the text of a chain that ends with it."""
    name = str(rng.choice(list(RULES)))
    before = ["clip", "arc"] if name == "zeno_auto" else list(PRE_AGGREGATORS)  # it raises for mixtures
    parts = [str(part) for part in rng.choice(before, size=int(rng.choice([0, 0, 1, 2])), replace=False)]
    return name, "+".join([*parts, name]).replace("clip+", "clip(10)+")
