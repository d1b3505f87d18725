"""Zeno without tuning: it finds out who is good, what is too large, and how many samples it takes.

Workers are judged by many steps instead of one: `zeno.rules.standing` says how.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from zeno.rules.parameters import AT_LEAST_0, AT_LEAST_1, NON_NEGATIVE, Requirement
from zeno.rules.rule import Aggregate, Count, Oracle, Rows, Rule, TooFewUsable
from zeno.rules.standing import CREDIT, MOST, PARTS, RATE, Standing, Verdict, judge
from zeno.rules.zeno import Zeno, descents

AUTO = "auto"
SHARE = Requirement("a number of at least 0 and below 1", lambda value: NON_NEGATIVE.holds(value) and value < 1)
SIZE_EVERY = 4  # steps from one measurement of the size of the server's gradient to the next


def _or_auto(number: Requirement) -> Requirement:
    return Requirement(f"'auto' or {number.text}", lambda value: value == AUTO or number.holds(value))


@dataclass(frozen=True)
class ZenoAuto(Rule):
    """Zeno without tuning: ranks workers over many steps, and chooses trim, rho and batch_size itself.

    `trim="auto"` keeps the workers whose standing is close to the best one's. `rho="auto"` compares the size of
    candidates with that of the server's gradient. `batch_size="auto"` uses more samples only while it is unclear who
    is good: 16 per step for all candidates on average, and at most 128. A rank at one step weighs `memory` times as
    much as one at the next. For the first `warm_up` steps the update is the server's gradient, while candidates are
    only judged. docs/choosing-a-rule.md has the costs.
    """

    trim: Annotated[int | str, _or_auto(AT_LEAST_0)] = AUTO
    rho: Annotated[float | str, _or_auto(NON_NEGATIVE)] = AUTO
    batch_size: Annotated[int | str, _or_auto(AT_LEAST_1)] = AUTO
    score: str = "exact"
    memory: Annotated[float, SHARE] = 0.97
    warm_up: Count = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        self._paper()  # checks the score
        if self.score == "first_order" and self.batch_size == AUTO:
            raise ValueError("ZenoAuto needs a number of samples for first-order scores. Found batch_size='auto'.")

    @property
    def samples(self) -> int:
        return 2 * RATE if self.batch_size == AUTO else int(self.batch_size)

    @property
    def tolerates(self) -> int | None:
        return None if self.trim == AUTO else int(self.trim)

    def _paper(self) -> Zeno:
        """The paper's rule with the values that are numbers."""
        values: dict[str, Any] = {"trim": self.trim, "rho": self.rho, "batch_size": self.batch_size}
        return Zeno(**{"trim": 0, **{name: v for name, v in values.items() if v != AUTO}}, score=self.score)

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        if isinstance(self.trim, int):
            rows.require(self.trim + 1, "more than trim", trim=self.trim)
        if self.memory == 0 == self.warm_up and AUTO not in (self.trim, self.rho, self.batch_size):
            return self._paper().aggregate(rows, oracle, state)
        if rows.mixed:
            raise ValueError(
                f"{self} needs the candidates as received, to know whose they are. Found mixtures of them. "
                "Remove the pre-aggregators, or use Zeno."
            )
        m, chosen, device = rows.m, rows.chosen, rows.device
        usable = torch.zeros(m, dtype=torch.bool)
        usable[chosen] = True
        norms = torch.full((m,), torch.nan, dtype=torch.float64)
        norms[chosen] = rows.squared_norms().cpu()
        before, large = Standing.of(state, m), torch.zeros_like(usable)
        if self.rho == AUTO:
            before = _sized(before, rows, oracle)
            large = before.too_large(norms)
        needed = 1 if self.trim == AUTO else m - int(self.trim)
        asked = before.asked(usable & ~large, needed) if self.batch_size == AUTO else usable & ~large
        if not bool(asked.any()):
            raise TooFewUsable.of(self, needed, asked)
        verdict, used, credit = self._weighed(before, rows, oracle, norms, asked, large)
        if int((verdict.key > -torch.inf).sum()) < needed:
            raise TooFewUsable.of(self, needed, verdict.key > -torch.inf)
        votes = weights = verdict.kept.double()
        if self.trim == AUTO:  # copies share one vote
            copies = torch.bincount(verdict.copy_of[verdict.kept], minlength=m)  # [m] of the first of them
            votes, weights = copies.clamp(max=1).double(), weights / copies[verdict.copy_of].clamp(min=1)
        if before.steps < self.warm_up:
            weights, update = torch.zeros_like(weights), rows.server_gradient(oracle).clone()
        else:
            update = rows.weighted_sum((votes / votes.sum())[chosen].to(device)).update
        shares, scores = (weights / votes.sum())[chosen].to(device), verdict.scores[chosen].to(device)
        return rows.result(update, shares, scores, {**vars(verdict.after), "credit": credit})._replace(
            standing=verdict.after.mean.to(device), samples=used, judged=(asked | large).to(device)
        )

    def _weighed(
        self, before: Standing, rows: Rows, oracle: Oracle | None, norms: Tensor, asked: Tensor, large: Tensor
    ) -> tuple[Verdict, int, float]:
        """The verdict, the samples it took, and the credit that is left."""
        trim = None if self.trim == AUTO else int(self.trim)
        rho = None if self.rho == AUTO else float(self.rho)

        def verdict_on(parts: Tensor) -> Verdict:
            return judge(before, parts, norms, asked | large, self.memory, trim, rho)

        if self.batch_size != AUTO:
            return verdict_on(self._parts(rows, oracle, asked, self.samples)), self.samples, before.credit
        m, num = len(asked), int(asked.sum())
        credit = before.credit + RATE * m
        used = min(MOST, max(PARTS, RATE * m // num // PARTS * PARTS))
        parts = self._parts(rows, oracle, asked, used)
        most = MOST // 2 if before.steps < self.warm_up else MOST
        while 2 * used <= most and 2 * used * num <= credit:
            halves = [verdict_on(parts[:, k::2]).kept for k in (0, 1)]
            if torch.equal(*halves):
                break  # what was kept is no matter of chance
            parts = torch.cat([parts, self._parts(rows, oracle, asked, used)], dim=1)
            used *= 2
        return verdict_on(parts), used, min(credit - used * num, float(CREDIT * RATE * m))

    def _parts(self, rows: Rows, oracle: Oracle | None, asked: Tensor, samples: int) -> Tensor:
        """The descents of those asked on fresh samples, in parts: [m, p], NaN for the others."""
        oracle = rows.require_oracle(oracle)
        if self.score == "first_order":
            found = torch.full((len(asked), 1), torch.nan, dtype=torch.float64)
            found[rows.chosen, 0] = descents(rows, oracle, self.score).cpu()
            return found.where(asked[:, None], torch.nan)
        which = asked.nonzero().flatten().tolist()
        fresh = oracle.fresh_descents([rows.geometry.candidates[i] for i in which], samples)
        found = torch.full((len(asked), fresh.shape[1]), torch.nan, dtype=torch.float64)
        found[which] = fresh.cpu().double()
        return found


def _sized(before: Standing, rows: Rows, oracle: Oracle | None) -> Standing:
    """With the size of the server's gradient, which no worker can change."""
    if before.steps % SIZE_EVERY and before.size > 0:
        return before
    now = float(rows.server_gradient(oracle).double().square().sum())
    return replace(before, size=now if before.size == 0 else (before.size + min(now, 4 * before.size)) / 2)
