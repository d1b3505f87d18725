"""The standing of workers over many steps, for `ZenoAuto`: the scores of one step are mostly noise.

At each step a candidate gets a rank from -0.5 to 0.5: the mean over the others of how far its score is above theirs,
clipped at half of the best score. A worker's standing is the decayed mean of its ranks. Copies of one another count
once. How much a step says beyond the past is measured, by how far two halves of the samples agree on its ranks, less
what the standings predicted. A candidate whose score is significantly lower than the best worker's is dropped at this
step, whatever its standing. A worker without a candidate keeps its standing.

Shapes: m workers, p parts of the samples.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

PARTS = 8  # that samples are split into, to see how far scores can be trusted
FAR = 0.5  # of the best score: a difference that makes a full rank
CLOSE, WIDE = 0.3, 0.25  # below the best that is still kept: at least this / sqrt(distinct candidates); at most
DOUBT = 2.0  # standard errors of a standing that it may be below, in between
SURE = 4.0  # standard errors that make a veto
SMALL, LARGE = 2.0, 10.0  # squared norms, relative to the server's gradient: not suspicious, and not to be used
FADE = 0.95  # of what was measured of noise, agreement and how much the past says, from step to step
EARLY = 5  # steps that standings need before it is measured what they are worth
RATE = 16  # samples per step that scoring all candidates may take on average, about one worker's gradient
CREDIT = 40  # steps' worth of samples that may be used ahead, while it is uncertain who is good
MOST = 128  # samples in a step


@dataclass(frozen=True, eq=False)
class Standing:
    """What the rule remembers from step to step."""

    ranks: Tensor  # [m] decayed sums of ranks
    weights: Tensor  # [m] decayed numbers of ranks
    squares: Tensor  # [m] the same of squared weights
    kept: Tensor  # [m] bool: at the last step
    foretold: float = 0.0  # decayed sum of standing * rank, both centred
    spread: float = 0.0  # decayed sum of standing squared, centred
    moved: float = 0.0  # decayed sum of rank squared, centred, at the same steps
    shared: float = 0.0  # decayed sum of rank * rank, from one half of the samples and from the other, both centred
    scatter: float = 0.0  # decayed sum of a rank from half of the samples squared, centred
    noise: float = 0.0  # mean square of a rank around its standing
    size: float = 0.0  # squared norm of the server's gradient
    credit: float = 0.0  # scores that may be taken beyond the rate
    steps: int = 0

    @classmethod
    def of(cls, state: Any, workers: int) -> "Standing":
        """From the state that the rule returned; a new one from None."""
        if state is None:
            zeros, kept = torch.zeros(workers, dtype=torch.float64), torch.ones(workers, dtype=torch.bool)
            return cls(zeros, zeros, zeros, kept, credit=float(CREDIT * RATE * workers))
        found = cls(**state)
        if len(found.ranks) != workers:
            raise ValueError(f"A standing of {len(found.ranks)} workers does not fit {workers}. Start without a state.")
        return found

    @property
    def mean(self) -> Tensor:
        """[m] from -0.5 to 0.5; 0 for a worker that has no rank yet."""
        return self.ranks / self.weights.clamp(min=1e-300)

    @property
    def tells(self) -> float:
        """How much standings say of the ranks to come: 0 nothing, 1 all that can be known."""
        return min(1.0, max(0.0, self.foretold / self.spread)) if self.spread > 0 else 1.0

    @property
    def reliable(self) -> float:
        """How much of the ranks of one step is not chance: 0 nothing, 1 all; from how far two halves agree."""
        halves = min(1.0, max(0.0, self.shared / self.scatter)) if self.scatter > 0 else 1.0
        return 2 * halves / (1 + halves)

    @property
    def news(self) -> float:
        """The share of a rank that is neither chance nor was foretold: 0 none, 1 all."""
        foretold = min(0.99, max(0.0, self.foretold / self.moved)) if self.moved > 0 else 0.0
        return max(0.0, self.reliable - foretold) / (1 - foretold)

    def asked(self, usable: Tensor, least: int = 1) -> Tensor:
        """[m] bool: whose candidates are worth a score at this step.

        All, until it is clear who is good; then those that were kept, the quarter that stands best, and every second
        of the others in turn. All again where these are fewer than `least`.
        """
        m = len(usable)
        if self.steps < 2 * EARLY or self.tells < 0.5:
            return usable
        in_turn = (torch.arange(m) + self.steps) % 2 == 0
        best = self.mean >= self.mean.sort(descending=True).values[m // 4]
        asked = usable & (self.kept | best | in_turn)
        return asked if int(asked.sum()) >= least else usable

    def too_large(self, norms: Tensor) -> Tensor:
        """[m] bool: candidates that are too large to use, unless all of them are."""
        return (norms > LARGE * self.size) & (norms <= LARGE * self.size).any()


@dataclass(frozen=True, eq=False)
class Verdict:
    """Who is kept at one step, and the standings after it."""

    scores: Tensor  # [m] of this step; -inf for those without
    key: Tensor  # [m] what candidates are kept by; -inf for those that cannot be
    kept: Tensor  # [m] bool
    copy_of: Tensor  # [m] the first worker that sent the same
    after: Standing


def judge(
    before: Standing,
    descents: Tensor,  # [m, p], NaN for those without
    norms: Tensor,  # [m] squared
    asked: Tensor,  # [m] bool: those without a descent among them rank last, the others are not judged
    fade: float,  # of the ranks, from step to step
    trim: int | None,  # None: keep all that stand close to the best
    rho: float | None,  # None: a candidate as large as the server's gradient loses a whole best descent
) -> Verdict:
    """Decides who is kept at this step."""
    m, mean = len(norms), descents.mean(dim=1)
    usable = asked & descents.isfinite().all(dim=1)
    small = usable & (norms <= SMALL * before.size) if rho is None else usable
    among = mean[small if bool(small.any()) else usable]
    best = max(abs(float(among.max())), 1e-300) if len(among) else 1.0
    penalty = norms * (best / max(before.size, 1e-300) if rho is None else rho)
    first: dict[tuple[float, float], int] = {}  # candidates of the same descent and norm to the last bit are the same
    pairs = zip(mean.tolist(), norms.tolist(), strict=True)
    copy_of = torch.tensor([first.setdefault(pair, i) for i, pair in enumerate(pairs)])
    counts = ((copy_of == torch.arange(m)) & asked).double().repeat(m, 1)
    counts[torch.arange(m), copy_of] = 0

    def ranks_by(descents: Tensor) -> Tensor:
        """[m] from -0.5 to 0.5: the mean over the other distinct candidates of how far above theirs a score is."""
        scores = (descents.mean(dim=1) - penalty).where(usable, -torch.inf)
        above = ((scores[:, None] - scores) / best).nan_to_num(0.0, FAR, -FAR).clamp(-FAR, FAR)
        return ((above * counts).sum(dim=1) / counts.sum(dim=1).clamp(min=1)).where(usable, -0.5)

    rank = ranks_by(descents)
    after = replace(
        before,
        ranks=torch.where(asked, fade * before.ranks + rank, before.ranks),
        weights=torch.where(asked, fade * before.weights + 1, before.weights),
        squares=torch.where(asked, fade * fade * before.squares + 1, before.squares),
        steps=before.steps + 1,
    )
    distinct = usable & (copy_of == torch.arange(m))
    if descents.shape[1] > 1:  # how far two halves of the samples agree on the ranks
        one, other = (half - half.mean() for half in (ranks_by(descents[:, k::2])[distinct] for k in (0, 1)))
        scatter = (one.square() + other.square()) / 2
        after = replace(after, shared=_faded(after.shared, one * other), scatter=_faded(after.scatter, scatter))
    known = usable & (before.weights > 0)
    if fade > 0 and int(known.sum()) > 1:
        after = _measured(after, before, rank, known, distinct)
    if trim is None:
        news = after.news if before.steps >= EARLY else 0.0
        key = (1 - news) * after.mean + news * rank
    else:  # only the order counts: where the past says nothing, that of the step
        tells = after.tells if fade > 0 else 0.0
        key = torch.where(known, tells * after.mean + (1 - tells) * after.reliable * rank, after.mean)
    key = key.where(usable, -torch.inf)

    order = key.argsort(descending=True, stable=True).tolist()
    relative = ((descents - penalty[:, None]) / best).clamp(-SURE, SURE)
    vetoed = _vetoed(relative, usable, order)
    if trim is None:
        seen = (after.weights.square() / after.squares.clamp(min=1e-300)).max()  # ranks that a standing is the mean of
        doubt = DOUBT * math.sqrt(after.noise / max(1.0, float(seen)))
        within = min(WIDE, max(CLOSE / math.sqrt(max(1, int(distinct.sum()))), doubt))
        allowed = usable & ~vetoed if bool((usable & ~vetoed).any()) else usable
        kept = allowed & (key >= key[allowed].max() - within) if bool(usable.any()) else usable
    else:
        kept = torch.zeros(m, dtype=torch.bool)
        kept[sorted(order, key=lambda i: bool(vetoed[i]))[: m - trim]] = True
        kept &= usable
    scores = (mean - penalty).where(usable, -torch.inf)
    return Verdict(scores, key, kept, copy_of, replace(after, kept=kept))


def _measured(after: Standing, before: Standing, rank: Tensor, known: Tensor, distinct: Tensor) -> Standing:
    """Notes how far ranks scatter around standings and, once these are worth it, how well they foretold the ranks."""
    among = known & distinct if bool((known & distinct).any()) else known
    scatter = float((rank - before.mean)[among].square().mean())
    after = replace(after, noise=scatter if before.noise == 0 else FADE * before.noise + (1 - FADE) * scatter)
    if before.steps < EARLY:
        return after
    standing, moved = (values[known] - values[known].mean() for values in (before.mean, rank))
    return replace(
        after,
        foretold=_faded(before.foretold, standing * moved),
        spread=_faded(before.spread, standing.square()),
        moved=_faded(before.moved, moved.square()),
    )


def _faded(total: float, new: Tensor) -> float:
    return FADE * total + float(new.sum())


def _vetoed(relative: Tensor, usable: Tensor, order: list[int]) -> Tensor:
    """[m] bool: those below the one that stands best (that one: below the next) beyond doubt, by half a best score."""
    vetoed = torch.zeros(len(usable), dtype=torch.bool)
    for i in usable.nonzero().flatten().tolist() if relative.shape[1] > 1 else []:  # parts to measure doubt by
        other = next((j for j in order[:2] if j != i and usable[j]), None)
        if other is not None:
            below = relative[other] - relative[i]
            error = float(below.std()) / math.sqrt(len(below))
            vetoed[i] = float(below.mean()) > max(FAR, SURE * error)
    return vetoed
