"""Who is suspect: what the records of a run say of each worker.

Records tell who was dropped, but somebody always is: a good worker among good ones loses as often as the others. A
verdict asks for more. At every step each worker is set against the trusted ones: as many as the rule kept at the step
before, those that stood highest until then. `below` is the share of these that scored higher than it, less the share
that scored lower: from -1 to 1. For a good worker among good ones it is 0 on average, whatever scores are like, since
nothing that was seen before says who of them comes out higher.

Against each worker a bet is made that its `below` is above 0, with money that grows by what it wins and shrinks by what
it loses. Such money rarely grows if the worker is good: to N times itself with a probability of at most 1 / N, however
long it is watched. N = workers / ERROR_RATE makes a suspect, so a run without faults has a suspect, ever, with a
probability of at most ERROR_RATE. Part of the money waits, and some of that is put in at every step: a fault that
begins late is found too. A suspect is mended once a bet that it is still as bad has lost in the same way.

Good workers need not be alike: each may have data of its own. So `below` has to be above a slack: several times as much
as workers differ in the long run, beyond what chance makes, within the groups that wide gaps between places leave; more
times the fewer they are. Faulty workers far from good ones, of one kind or two, leave it small; workers that all
differ make it large. Suspects do not count for it, and it is not granted to a worker that failed.

What it cannot do: see more than the rule does. Where faulty workers score higher than good ones, the good are suspect.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zeno.records.folder import Record
from zeno.workers.reply import kind_of

ERROR_RATE = 0.01
RECENT = 100  # steps
STAKES = np.array([[1 / 16], [1 / 4], [3 / 4]])  # shares of the money, bet side by side: for weak signs and for strong
MOST_EVIDENCE = 1e100  # more is not counted
SLACK = 6.0  # standard deviations that good workers may differ by,
FEW = 8.0  # and by 1 + (this / places) ** 2 times more, where they are known from few places
BY_CHANCE = 2.0  # standard errors of a place that the slack is at least
FARTHEST = 0.99  # from the middle that a place is taken to be
ENOUGH = 4  # places of their own that workers need to have, for anybody to know how they differ;
SLACK_OF_FEW = 0.25  # where they have fewer
MANY = 12  # places, from which on there may be three groups of them
APART = 4.0  # times smaller that the third one has to make the variance
SLACK_EACH, SLACK_EVERY = 100, 10  # steps at first that the slack is new at, and steps that it is kept for after these
FADE = 0.995  # of a worker's place, from step to step
LEVEL_FADE = 0.98  # of how far it is below, from step to step
REST, TRIAL = 100, 50  # steps in quarantine, doubled each time, and steps that it is tried again
MOST_NAMED = 20  # in a sentence

Values = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Row:
    """What is known of one worker."""

    worker: int
    verdict: str  # "suspect", "mended" (was suspect, and is no longer), or "" (not enough against it)
    since: int | None  # the step of the verdict
    evidence: float  # against it, the most that there was: 1 says nothing, `Ledger.threshold` makes a suspect
    steps: int  # that it was asked at
    dropped: float | None  # share of the steps that it was judged at and somebody was kept; None where there are none
    recently: float | None  # the same, of the last `RECENT` steps of the run
    rank: float | None  # mean of those that were judged, 1 is best; None where the rule does not rank
    streak: int  # most steps in a row that it was dropped at
    errors: dict[str, int]  # steps, by what was wrong: `zeno.reply.KINDS`
    late: int  # replies that came after their step was over
    quarantined: int  # steps that it was not asked at
    faulty: float | None  # share of the steps that it was made faulty at, in a simulation; None when nobody knows


class Ledger:
    """What the records of a run say of each worker; they are added as they come, and verdicts hold at any time."""

    def __init__(self, workers: int, error_rate: float = ERROR_RATE) -> None:
        self.workers = workers
        self.error_rate = error_rate
        self.threshold = workers / error_rate
        self.steps = 0
        self._tally = _Tally(workers)
        self._places = _Places(workers)
        self._against = _Bets(workers)
        self._mended = _Bets(workers)
        self._suspect = np.zeros(workers, dtype=bool)
        self._since = np.full(workers, -1)
        self._line = np.zeros(workers)  # what a suspect's `below` has to stay under, to be mended
        self._rest = np.zeros(workers, dtype=int)  # steps that it rests, in quarantine
        self._back = np.zeros(workers, dtype=int)  # the step from which it is tried again

    def add(self, record: Record) -> None:
        """Takes in the next step."""
        scores = _scores(record, self.workers)
        judged = ~np.isnan(scores)
        above, beneath = _above_and_below(scores, scores[judged])
        self._tally.add(record, judged, 1 + above + (int(judged.sum()) - 1 - above - beneath) / 2)
        self.steps += 1
        if int(judged.sum()) < 2:
            return
        place = (beneath - above) / (int(judged.sum()) - 1)
        below, below_replies, slack = self._places.add(scores, judged, place, sum(record.kept or ()), self._suspect)
        allowed = np.full(self.workers, slack)
        allowed[list(record.errors)] = 0.0  # data of its own make no worker fail
        self._against.add((below - allowed) / (1 + slack), judged)
        if self._suspect.any():
            # Nobody is mended by the failures of others.
            self._mended.add((self._line - below_replies) / (1 - self._line), judged & self._suspect)
        self._line = np.where(self._suspect, np.maximum(self._line, self._half_as_bad(slack)), 0.0)
        for worker in np.flatnonzero(~self._suspect & (self._against.money >= self.threshold)).tolist():
            self._suspect[worker], self._since[worker] = True, record.step
            self._line[worker] = self._half_as_bad(slack)[worker]
            self._mended.restart(worker)
            self._rest[worker], self._back[worker] = REST, record.step + 1 + REST
        for worker in np.flatnonzero(self._suspect & (self._mended.money >= self.threshold)).tolist():
            self._suspect[worker], self._since[worker] = False, record.step
            self._against.restart(worker)
        tried = self._suspect & (record.step + 1 >= self._back + TRIAL) & (self._mended.money <= 1)  # in vain
        self._rest[tried] *= 2
        self._back[tried] = record.step + 1 + self._rest[tried]

    def __str__(self) -> str:
        return in_words(self)

    def _half_as_bad(self, slack: float) -> Values:
        """What a worker has to be above of, to be half as far below the trusted as it was lately."""
        half: Values = np.clip((slack + self._places.level) / 2, 0.0, 0.9)
        return half

    @property
    def suspects(self) -> list[int]:
        return [int(worker) for worker in np.flatnonzero(self._suspect)]

    @property
    def rows(self) -> list[Row]:
        """One for each worker, in their order."""
        return [
            Row(
                worker=i,
                verdict="suspect" if self._suspect[i] else "mended" if self._since[i] >= 0 else "",
                since=int(self._since[i]) if self._since[i] >= 0 else None,
                evidence=float(self._against.most[i]),
                **self._tally.of(i),
            )
            for i in range(self.workers)
        ]

    def resting(self, step: int, most: int) -> list[int]:
        """The suspects that are not to be asked at a step: `most` of them, those with the oldest verdicts first.

        Each rests for a while, is tried again for a while, and rests for twice as long unless it does better.
        """
        found = [worker for worker in self.suspects if step < self._back[worker]]
        return sorted(sorted(found, key=lambda worker: self._since[worker])[:most])


def ledger_of(records: Iterable[Record], workers: int) -> Ledger:
    """The ledger of a run, from its records in order."""
    ledger = Ledger(workers)
    for record in records:
        ledger.add(record)
    return ledger


def in_words(ledger: Ledger) -> str:
    """Who is suspect, in a sentence or two."""
    who = [str(worker) for worker in ledger.suspects]
    if not who:
        return "No worker is suspect." if ledger.steps else "There is no step yet."
    shown = who if len(who) <= MOST_NAMED else [*who[: MOST_NAMED - 1], f"{len(who) - MOST_NAMED + 1} more"]
    listed = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    text = f"{len(who)} of {ledger.workers} workers {'is' if len(who) == 1 else 'are'} suspect: {listed}."
    if 2 * len(who) > ledger.workers:
        text += " That is the majority: either they are faulty, or the others are and the rule believes them."
    return text


def _scores(record: Record, workers: int) -> Values:
    """[m] higher is better; minus infinity for what could not be used, NaN for who was not judged."""
    if record.scores is not None:
        scores = np.array([-math.inf if score is None else score for score in record.scores])
    elif record.kept is not None:
        scores = np.array(record.kept, dtype=float)
    else:
        scores = np.zeros(workers)
    scores[list(record.errors)] = -math.inf
    scores[record.unjudged + record.quarantined] = math.nan
    return scores


def _above_and_below(scores: Values, among: Values) -> tuple[Values, Values]:
    """[m] how many among these are higher than each score, and how many are lower."""
    ordered = np.sort(among)
    above = len(ordered) - np.searchsorted(ordered, scores, side="right")
    return above.astype(float), np.searchsorted(ordered, scores, side="left").astype(float)


class _Places:
    """Where workers stand among each other over the steps."""

    def __init__(self, workers: int) -> None:
        self._levels = np.zeros(workers)  # decayed sums of how far below the trusted each was
        self._level_weights = np.zeros(workers)
        self._sums = np.zeros(workers)  # decayed sums of places, which are from -1, the last, to 1, the first
        self._weights = np.zeros(workers)
        self._squares = np.zeros(workers)  # of the weights
        self._scatter, self._scattered = 0.0, 0.0  # decayed sums: of squared deviations from the mean place, and of 1
        self._kept = workers  # at the last step that kept somebody
        self._steps, self._last_slack = 0, 1.0

    def add(
        self, scores: Values, judged: Mask, place: Values, kept: int, suspect: Mask
    ) -> tuple[Values, Values, float]:
        """How far each of those judged is below the trusted, and below those that replied alone, and the slack.

        Who is trusted, and the slack, come from earlier steps alone; their places at this one come last.
        """
        mean = self._sums / np.maximum(self._weights, 1e-300)
        if self._steps < SLACK_EACH or self._steps % SLACK_EVERY == 0:
            self._last_slack = self._slack(mean, suspect)
        slack = self._last_slack
        self._steps += 1
        order = np.flatnonzero(judged)[np.argsort(-mean[judged], kind="stable")]
        replied = order[np.isfinite(scores[order])]
        below = _below(scores, order, self._kept)
        below_replies = _below(scores, replied, self._kept) if len(replied) else np.ones_like(below)
        known = judged & (self._weights > 1)
        self._scatter = FADE * self._scatter + float(np.square(place - mean)[known].sum())
        self._scattered = FADE * self._scattered + float(known.sum())
        self._sums = np.where(judged, FADE * self._sums + place, self._sums)
        self._weights = np.where(judged, FADE * self._weights + 1, self._weights)
        self._squares = np.where(judged, FADE**2 * self._squares + 1, self._squares)
        self._levels = np.where(judged, LEVEL_FADE * self._levels + below, self._levels)
        self._level_weights = np.where(judged, LEVEL_FADE * self._level_weights + 1, self._level_weights)
        self._kept = kept or self._kept
        return below, below_replies, slack

    @property
    def level(self) -> Values:
        """How far below the trusted each was lately."""
        mean: Values = self._levels / np.maximum(self._level_weights, 1e-300)
        return mean

    def _slack(self, mean: Values, suspect: Mask) -> float:
        """How far good workers may be below others, by how far places differ within a group, beyond chance."""
        seen = (self._weights > 2) & ~suspect
        means = np.clip(mean[seen], -FARTHEST, FARTHEST)
        places = np.unique(means)  # copies of one another count once
        if len(places) < ENOUGH:
            return SLACK_OF_FEW if self._weights.max() > RECENT / 4 else 1.0
        errors = self._scatter / self._scattered * self._squares[seen] / self._weights[seen] ** 2
        # Places crowd at both ends, so how far they differ is measured where they do not.
        chance = float(np.median(errors / (1 - means**2) ** 2))
        differ = math.sqrt(max(0.0, _variance_within(np.arctanh(places)) - chance))
        slack = math.tanh(SLACK * (1 + (FEW / len(places)) ** 2) * differ)
        return max(slack, min(1.0, BY_CHANCE * math.sqrt(float(np.median(errors)))))


def _below(scores: Values, order: NDArray[np.intp], trusted: int) -> Values:
    """[m] the share of the first workers in an order that are higher than each, less the share that are lower."""
    first = order[:trusted]
    others = np.full(len(scores), len(first))
    others[first] -= 1
    above, below = _above_and_below(scores, scores[first])
    found: Values = (above - below) / np.maximum(others, 1)
    if len(first) == 1 and len(order) > 1:  # who is trusted alone has the next one beside it
        one, two = order[:2]
        found[one] = float(scores[two] > scores[one]) - float(scores[two] < scores[one])
    return found


def _variance_within(places: Values) -> float:
    """The variance of sorted places within the groups that the widest gaps leave: two, or three where that pays."""
    widest = np.argsort(np.diff(places))[::-1] + 1

    def with_splits(num: int) -> float:
        groups = np.split(places, np.sort(widest[:num]))
        return sum(float(np.square(group - group.mean()).sum()) for group in groups) / (len(places) - len(groups))

    two = with_splits(1)
    three = with_splits(2) if len(places) >= MANY else two
    return three if three < two / APART else two


class _Bets:
    """Money that is bet on each worker; where bets are not in our favour, it rarely grows.

    It begins with 1, which waits. At the n-th step 1 / (n * (n + 1)) of that is put in, and stays in from there on.
    """

    def __init__(self, workers: int) -> None:
        self._in = np.zeros((len(STAKES), workers))
        self._waiting = np.ones(workers)
        self._steps = np.zeros(workers)
        self.most = np.ones(workers)  # that there was

    def add(self, gains: Values, on: Mask) -> None:
        """One more step: what a bet of everything on each worker brings, of -1 or more, and whom there are bets on."""
        new = np.where(on, 1 / ((self._steps + 1) * (self._steps + 2)), 0.0)
        factors = np.where(on, 1 + STAKES * gains, 1.0)
        self._in = np.minimum((self._in + new) * factors, MOST_EVIDENCE)
        self._waiting -= new
        self._steps += on
        self.most = np.maximum(self.most, self.money)

    @property
    def money(self) -> Values:
        mean: Values = self._in.mean(axis=0) + self._waiting
        return mean

    def restart(self, worker: int) -> None:
        self._in[:, worker], self._waiting[worker], self._steps[worker], self.most[worker] = 0.0, 1.0, 0.0, 1.0


class _Tally:
    """Counts."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._asked, self._counted, self._dropped, self._ranked, self._streak, self._longest = (
            np.zeros(workers, dtype=int) for _ in range(6)
        )
        self._ranks = np.zeros(workers)
        self._errors: list[dict[str, int]] = [{} for _ in range(workers)]
        self._late = [0] * workers
        self._faulty: list[int] | None = None
        self._steps = 0
        self._recent: deque[tuple[Mask, Mask]] = deque(maxlen=RECENT)

    def add(self, record: Record, judged: Mask, ranks: Values) -> None:
        self._steps += 1
        asked = np.ones(self._workers, dtype=bool)
        asked[record.quarantined] = False
        self._asked += asked
        counted = judged & bool(record.kept and any(record.kept))  # where nobody is kept, nobody is dropped
        dropped = np.zeros(self._workers, dtype=bool)
        dropped[record.dropped] = True
        self._counted += counted
        self._dropped += dropped
        self._streak = np.where(counted, np.where(dropped, self._streak + 1, 0), self._streak)
        self._longest = np.maximum(self._longest, self._streak)
        self._recent.append((counted, dropped))
        if record.scores is not None:
            self._ranked += judged
            self._ranks += np.where(judged, ranks, 0.0)
        for worker, error in record.errors.items():
            kinds = self._errors[worker]
            kinds[kind_of(error)] = kinds.get(kind_of(error), 0) + 1
        for worker in record.late:
            self._late[worker] += 1
        if record.faulty is not None:
            self._faulty = self._faulty or [0] * self._workers
            for worker in record.faulty:
                self._faulty[worker] += 1

    def of(self, i: int) -> dict[str, Any]:
        recent = [sum(int(mask[i]) for mask in masks) for masks in zip(*self._recent, strict=True)] or [0, 0]
        return {
            "steps": int(self._asked[i]),
            "dropped": float(self._dropped[i] / self._counted[i]) if self._counted[i] else None,
            "recently": recent[1] / recent[0] if recent[0] else None,
            "rank": float(self._ranks[i] / self._ranked[i]) if self._ranked[i] else None,
            "streak": int(self._longest[i]),
            "errors": dict(self._errors[i]),
            "late": self._late[i],
            "quarantined": self._steps - int(self._asked[i]),
            "faulty": None if self._faulty is None else self._faulty[i] / self._steps,
        }
