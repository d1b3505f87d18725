"""Zeno (Xie, Koyejo and Gupta, ICML 2019): believe the candidates that lower the server's own loss.

Each candidate u is a suspect. Its score is the descent it brings on a few samples of the server's own, less
a penalty on its size, which bounds the harm a wrong step can do where the samples happen not to show it:

    score(u) = f_r(x) - f_r(x - lr * u) - rho * ||u||^2          f_r: mean loss on n_r fresh samples

The update is the average of the m - b highest scores. No majority is asked for: one good worker suffices.

That is the paper, which needs b, rho and n_r to be right. Each of them can be left to the rule, and workers can be
judged by many steps instead of one: `zeno.rules.standing` says how.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from zeno.rules.rows import OnRows, Rows, keep_lowest
from zeno.rules.rule import Aggregate, Descent, TooFewUsable, check_count, check_more, own_gradient
from zeno.rules.standing import CREDIT, MOST, PARTS, RATE, Standing, Verdict, judge

SCORES = ("exact", "first_order")
AUTO = "auto"
SIZE_EVERY = 4  # steps from one look at the size of the server's own gradient to the next


@dataclass(frozen=True)
class Zeno(OnRows):
    """Average of the m - trim candidates that lower the server's own loss most; bears `trim` faulty of any m.

    `trim="auto"` keeps those that stand close to the best, without being told how many are faulty. `memory` above 0
    judges a worker by its ranks at many steps, each weighing that share of the next one's. `rho="auto"` measures
    candidates by the server's own gradient. `batch_size="auto"` takes more samples only while it is unclear who is
    good: 16 a step for all candidates on average, and up to 128 in one. docs/which-rule.md has what that costs.

    `warm_up` steps are made with the server's own gradient while candidates are only judged: at first nobody can be
    told apart, and a model that most workers have pulled the wrong way does not show who is good.

    `score="first_order"` takes lr * <grad f_r(x), u> for the descent: one backward pass for all candidates instead of
    a forward pass for each. It differs where the loss bends along a step: a step so long that it overshoots still
    scores well, and only rho holds it back. Early in training, with BatchNorm, at high lr: take the exact one.
    """

    trim: int | str  # b in the paper
    rho: float | str = 5e-4
    batch_size: int | str = 4  # n_r in the paper: samples of the server's own that `descent` is estimated on
    score: str = "exact"
    memory: float = 0.0
    warm_up: int = 0  # steps that the server's own gradient is the update of, while all candidates are judged

    def __post_init__(self) -> None:
        if self.trim != AUTO:
            check_count(self, "trim", self.trim, 0)
        if self.batch_size != AUTO:
            check_count(self, "batch_size", self.batch_size, 1)
        check_count(self, "warm_up", self.warm_up, 0)
        if self.rho != AUTO and not _is_number(self.rho, least=0, below=math.inf):
            raise ValueError(f"Zeno needs rho as 'auto' or a finite number of at least 0. Found rho={self.rho!r}.")
        if not _is_number(self.memory, least=0, below=1):
            raise ValueError(f"Zeno needs memory as a number of at least 0 and below 1. Found memory={self.memory!r}.")
        if self.score not in SCORES:
            raise ValueError(f"Zeno needs score as one of {', '.join(SCORES)}. Found score={self.score!r}.")
        if self.score == "first_order" and self.batch_size == AUTO:
            raise ValueError("Zeno needs a number of samples for first-order scores. Found batch_size='auto'.")

    @classmethod
    def auto(cls, memory: float = 0.97, warm_up: int = 20, **told: Any) -> "Zeno":
        """Zeno that is told nothing, or only this: who is good, what is too large, how many samples, it finds out."""
        return cls(**{"trim": AUTO, "rho": AUTO, "batch_size": AUTO, "memory": memory, "warm_up": warm_up, **told})

    @property
    def plain(self) -> bool:
        """Whether this is the paper's rule: told everything, and without a memory."""
        return self.memory == 0 and self.warm_up == 0 and AUTO not in (self.trim, self.rho, self.batch_size)

    @property
    def samples(self) -> int:
        """Samples of the server's own that its gradient is computed on, and scores where their number is fixed."""
        return 2 * RATE if self.batch_size == AUTO else int(self.batch_size)

    @property
    def on_arrival(self) -> bool:
        """Whether candidates can be scored as they come: the rule asks for the descent of each as it is."""
        return self.score == "exact" and self.plain

    def on_rows(self, rows: Rows, descent: Descent | None, state: object) -> Aggregate:
        if isinstance(self.trim, int):
            check_more(self, "trim", self.trim, rows.size)
        if not self.plain:
            return self._by_standing(rows, descent, state)
        assert isinstance(self.trim, int)
        scores = self.scores(rows, descent)
        keep = rows.n - rows.lowered(self, self.trim)
        if int((scores > -torch.inf).sum()) < keep:
            raise TooFewUsable(self, keep, (rows.owners & (scores > -torch.inf)[:, None]).any(dim=0))
        kept = keep_lowest(-scores, keep)
        return rows.result(rows.average(kept), kept, scores)

    def scores(self, rows: Rows, descent: Descent | None) -> Tensor:
        """The paper's score of each row -> [n]; minus infinity where it is not a number."""
        assert isinstance(self.rho, int | float)
        scores = self._descents(rows, descent) - self.rho * rows.squared_norms()
        return scores.nan_to_num(-torch.inf, torch.inf, -torch.inf)

    def _by_standing(self, rows: Rows, descent: Descent | None, state: object) -> Aggregate:
        if rows.mixed_up:
            raise ValueError(
                f"{self} needs the candidates as they came, to know whose they are. Found mixtures of them. "
                "Leave out the parts before it, or give trim, rho and batch_size as numbers and no memory."
            )
        m, chosen = rows.m, list(rows.chosen)
        usable = torch.zeros(m, dtype=torch.bool)
        usable[chosen] = True
        norms = torch.full((m,), torch.nan, dtype=torch.float64)
        norms[chosen] = rows.squared_norms().cpu()
        before = Standing.of(state, m)
        if self.rho == AUTO:
            before = self._sized(before, descent, rows.d)
        large = before.too_large(norms) if self.rho == AUTO else torch.zeros_like(usable)
        needed = 1 if self.trim == AUTO else m - int(self.trim)
        asked = before.asked(usable & ~large, needed) if self.batch_size == AUTO else usable & ~large
        if not bool(asked.any()):
            raise TooFewUsable(self, needed, asked)
        verdict, used, credit = self._weighed(before, rows, descent, norms, asked, large)
        kept = verdict.kept
        if int((verdict.key > -torch.inf).sum()) < needed:
            raise TooFewUsable(self, needed, verdict.key > -torch.inf)
        votes = kept.double()
        if self.trim == AUTO:  # of copies only one counts
            votes = torch.zeros(m, dtype=torch.float64)
            votes[verdict.copy_of[kept].unique()] = 1
        after = {**verdict.after.state(), "credit": credit}
        device = rows.candidates.tensor.device
        if before.steps < self.warm_up:
            kept = torch.zeros_like(kept)
            update = own_gradient(self, descent, rows.d).clone()
        else:
            update = rows.combine((votes / votes.sum())[chosen].to(device))
        result = rows.result(update, kept[chosen].to(device), verdict.scores[chosen].to(device), after)
        standing = verdict.after.mean.to(device)
        return result._replace(standing=standing, samples=used, judged=(asked | large).to(device))

    def _weighed(
        self, before: Standing, rows: Rows, descent: Descent | None, norms: Tensor, asked: Tensor, large: Tensor
    ) -> tuple[Verdict, int, float]:
        """The verdict, the samples it took, and the credit that is left."""
        trim, rho = (None if value == AUTO else value for value in (self.trim, self.rho))

        def verdict_on(parts: Tensor) -> Verdict:
            return judge(before, parts, norms, asked | large, self.memory, trim, rho)  # type: ignore[arg-type]

        if self.batch_size != AUTO:
            return verdict_on(self._parts(rows, descent, asked, self.samples)), self.samples, before.credit
        m, num = len(asked), int(asked.sum())
        credit = before.credit + RATE * m
        used = min(MOST, max(PARTS, RATE * m // num // PARTS * PARTS))
        parts = self._parts(rows, descent, asked, used)
        most = MOST // 2 if before.steps < self.warm_up else MOST
        while 2 * used <= most and 2 * used * num <= credit:
            halves = [verdict_on(parts[:, k::2]).kept for k in (0, 1)]
            if torch.equal(*halves):
                break  # what was kept is no matter of chance
            parts = torch.cat([parts, self._parts(rows, descent, asked, used)], dim=1)
            used *= 2
        return verdict_on(parts), used, min(credit - used * num, float(CREDIT * RATE * m))

    def _parts(self, rows: Rows, descent: Descent | None, asked: Tensor, samples: int) -> Tensor:
        """The descents of those asked on fresh samples, in parts: [m, p], NaN for the others."""
        ask: Any = getattr(descent, "parts", None)
        found = torch.full((len(asked), 1), torch.nan, dtype=torch.float64)
        if self.score == "exact" and ask is not None:
            which = asked.nonzero().flatten().tolist()
            descents: Tensor = ask([rows.candidates.tensor[i] for i in which], samples)
            found = found.repeat(1, descents.shape[1])
            found[which] = descents.cpu().double()
            return found
        if self.batch_size == AUTO:
            raise ValueError(
                f"{self} needs descents on as many samples as it asks for. Found {descent!r} without `parts`. "
                "Pass a function parts(candidates, samples) that returns [m, p], or a number as batch_size."
            )
        found[list(rows.chosen), 0] = self._descents(rows, descent).cpu()
        return found.where(asked[:, None], torch.nan)

    def _sized(self, before: Standing, descent: Descent | None, d: int) -> Standing:
        """With the size of the server's own gradient, which no worker can change."""
        if before.steps % SIZE_EVERY and before.size > 0:
            return before
        now = float(own_gradient(self, descent, d).double().square().sum())
        size = now if before.size == 0 else (before.size + min(now, 4 * before.size)) / 2
        return replace(before, size=size)

    def _descents(self, rows: Rows, descent: Descent | None) -> Tensor:
        """By how much each row lowers the loss: [n] in float64."""
        if self.score == "first_order":
            gradient, lr = own_gradient(self, descent, rows.d), getattr(descent, "lr", None)
            if lr is None:
                raise ValueError(f"{self} needs the step that is tried, lr, from descent. Found {descent!r} without.")
            # One rate, or one for each parameter [d].
            return rows.dots(lr * gradient) if isinstance(lr, Tensor) and lr.ndim else float(lr) * rows.dots(gradient)
        if descent is None:
            raise ValueError(
                "Zeno needs descent, the decrease of the loss on samples of the server's own. Found None. "
                "Pass descent=, a function of the candidates [m, d] that returns [m]; zeno.Problem.at makes one."
            )
        decrease = rows.each(descent)
        return decrease.to(torch.float64)


def _is_number(value: object, least: float, below: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value < below
