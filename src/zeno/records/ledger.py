"""Which workers are suspect, from the records of a run.

Being dropped is not evidence: some worker is dropped at every step. The ledger bets one unit against each worker, in
three parts, on what a healthy worker does only by chance. If a worker is healthy, the value of the bets ever reaches N
with a probability of at most 1 / N, however long the run is. N = workers / ERROR_RATE makes a worker suspect, so a run
without faults ever has a suspect with a probability of at most ERROR_RATE.

1. **Failing.** A healthy worker fails at a rate of at most `failure_rate`: it dies, is late, raises, or sends something
   that is malformed, not finite, or many times as long as the server's own gradient. The other workers do not matter.
2. **Harmful.** If the rule has samples of the server's own, the record has the cosine between each candidate and the
   gradient on these samples. On average it is at least 0 for a worker that helps, and below 0 for one that harms. A
   cosine counts relative to the size that those of this worker usually have, up to twice that, so that a small harm is
   found as well. Only a worker with very different data may help as a part of a mixture although its own cosine is
   below 0. So the lowest mean cosine of the workers that the rule uses is allowed to all others.
3. **Worse than others.** A worker is compared with those that the rule trusts, by their scores; see `comparison`. With
   samples of the server's own, only while all others that the rule uses have cosines that are clearly above 0: with
   different data, or where the rule uses faulty workers, a low score is no fault.

Workers may join. Half of the ERROR_RATE is then for those that were there at the first step, n of them, and half for
the others: with m workers, 2 * m**2 / (n * ERROR_RATE) makes a suspect. The chances of all good workers, whatever m is
when their evidence is highest, sum to at most n * 1 / (2 * n) + sum_{m > n} n / (2 * m**2) <= 1 of ERROR_RATE.

A suspect is mended by evidence of health: a bet that it fails at most half as often, that its cosine is above 0, or
that it is less far below others, has won in the same way. That training has converged, so that nothing can be told,
mends nobody: there is no bet on scores while the workers in use have cosines of about 0. Without samples of the
server's own, nothing tells health from convergence, so a worker that is worse than others stays suspect.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from zeno.records.betting import STAKES, Bets, Mask, Values, on_a_mean, on_a_rate
from zeno.records.comparison import SLACK_OF_SIMILAR, Cosines, Places
from zeno.records.record import Record
from zeno.records.row import Row
from zeno.records.state import state_of, with_state
from zeno.records.tally import TOO_LARGE, Tally
from zeno.workers.reply import ErrorKind

ERROR_RATE = 0.01
FAILURE_RATE = 0.001  # of the steps of a healthy worker
FAILING = np.array([[1 / 2], [1 / 3], [1 / 10]])  # powers of it: higher rates, to bet on side by side
MENDED = np.array([[0.0], [0.5], [0.9]])  # of half the rate at which a suspect failed: the same of one that is mended
LONGEST = 30.0  # times the length of the server's own gradient; a longer candidate is too large
FAILS, HARMS, WORSE = "failing", "harmful", "worse than others"
REASONS = ("", FAILS, TOO_LARGE, HARMS, WORSE)  # of a verdict
TELLING = 0.1  # the mean cosine of the workers in use, from which on scores can tell who is worse, or mended
WITHIN = 2.0  # times the usual size of a worker's cosines: larger ones count as this. At least TELLING, at most 1
NEAR = 0.05  # by which the mean cosine of a good worker may be below that of all others
USED = 0.5  # of an equal weight: what is below may shorten a mixture, and be wrong
ENOUGH, HARDLY = 5, 0.1  # updates that a worker should be in by its share, and the part of them that is hardly any
REST, TRIAL = 100, 50  # steps in quarantine, doubled each time, and steps of the trial after it
AWAY = 5  # times the number of workers: steps without being asked, of a worker that has left; at least TRIAL
MOST_NAMED = 20  # workers in a sentence


class Ledger:
    """What the records of a run say about each worker. Verdicts are valid at any time.

    With `similar_data` all workers draw from the same data, as the ranks of a DDP job do. Then good workers score about
    as high as others on average, and little has to be allowed for them. Their cosines are not used: all of them are
    below 0 when a model learns its training data by heart, because the loss on other samples rises then.
    """

    def __init__(
        self,
        workers: int,
        error_rate: float = ERROR_RATE,
        failure_rate: float = FAILURE_RATE,
        similar_data: bool = False,
    ) -> None:
        if not 0 < failure_rate < 1:
            raise ValueError(f"A ledger needs failure_rate above 0 and below 1. Found {failure_rate!r}.")
        self.workers = workers
        self.names = [str(worker) for worker in range(workers)]
        self.error_rate = error_rate
        self.failure_rate = failure_rate
        self.similar_data = similar_data
        self._machines: dict[str, str] = {}  # worker -> where it runs, or ran when it became suspect
        self._first: int | None = None  # workers at the first step, if workers may join
        self.steps = 0
        self._tally = Tally(workers)
        self._places = Places(workers)
        self._cosines = Cosines(workers)
        self._failing = Bets(workers)
        self._harmful = Bets(workers)
        self._worse = Bets(workers)
        self._mended = Bets(workers)
        self._most = np.ones(workers)  # evidence, the highest so far
        self._used = np.zeros(workers, dtype=bool)  # whether the rule used it when it was last asked
        self._asked = np.full(workers, -1)  # the last step at which it was asked
        self._suspect = np.zeros(workers, dtype=bool)
        self._reason = np.zeros(workers, dtype=int)  # of the verdict, in REASONS
        self._since = np.full(workers, -1)
        self._line = np.full(workers, 0.5)  # a suspect is mended if its failures, or its `below`, stay under this
        self._rest = np.zeros(workers, dtype=int)  # steps of its current rest in quarantine
        self._back = np.zeros(workers, dtype=int)  # the step at which its next trial begins

    @property
    def threshold(self) -> float:
        """The evidence that makes a suspect."""
        if self._first is None:
            return self.workers / self.error_rate
        return 2 * self.workers**2 / (self._first * self.error_rate)

    @property
    def evidence(self) -> list[float]:
        """The highest evidence so far against each worker: 1 says nothing, `threshold` makes a suspect."""
        found: list[float] = self._most.tolist()
        return found

    def join(self, names: Sequence[str]) -> None:
        """Adds workers; what is known about the others does not change.

        A run whose workers have names starts with `Ledger(0)`.
        """
        before, workers = self.workers, self.workers + len(names)
        larger = Ledger(workers, self.error_rate, self.failure_rate, self.similar_data)
        if self.steps:
            with_state(larger, state_of(self))
        larger.workers, larger.names = workers, [*self.names, *names]
        larger._first = (self._first or before) if self.steps else workers
        larger._tally.quarantined[before:] = self.steps
        vars(self).update(vars(larger))

    def state_dict(self) -> dict[str, Any]:
        """All that it holds, as plain numbers, texts, lists and dicts."""
        return dict(state_of(self))

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> "Ledger":
        """A ledger that continues from what `state_dict` returned."""
        ledger: Ledger = with_state(cls(state["workers"]), state)
        return ledger

    def add(self, record: Record) -> list[int]:
        """Adds the next step; returns the workers that became suspect with it."""
        if record.joined:
            self.join(record.joined)
        self.steps += 1
        unsuspected = {str(i): place for i, place in record.machines.items() if i not in self.suspects}
        self._machines = {**self._machines, **unsuspected}
        asked, failed, too_large = np.ones(self.workers, dtype=bool), *np.zeros((2, self.workers), dtype=bool)
        asked[record.quarantined] = False
        self._asked[asked] = record.step
        failed[list(record.errors)] = True
        stale = [worker for worker, error in record.errors.items() if error.kind is ErrorKind.STALE]
        judged = asked & ~np.isin(range(self.workers), stale)  # settings of the run make a reply too stale
        if record.lengths is not None:
            too_large = (_values(record.lengths) > LONGEST) & asked & ~failed  # False for NaN
            too_large &= ~self._used | self.similar_data
        events = failed | too_large
        self._failing.add(on_a_rate(events, self.failure_rate, self.failure_rate**FAILING), judged)
        mended, on = np.ones((len(STAKES), self.workers)), np.zeros(self.workers, dtype=bool)  # factors and bets
        for who, factors, known in (
            (self._is(FAILS, TOO_LARGE), on_a_rate(events, self._line, MENDED * self._line), judged),
            *self._compare(record, asked & ~failed),
        ):
            mended, on = np.where(who, factors, mended), on | (who & known)
        self._mended.add(mended, on)
        self._tally.add(record, asked, too_large)
        if record.kept is not None:
            weights = np.array(record.kept if record.weights is None else record.weights, dtype=float)
            self._used = np.where(judged, weights * asked.sum() >= USED, self._used)
        return self._judge(record.step)

    def _compare(self, record: Record, there: Mask) -> Iterator[tuple[Mask, Values, Mask]]:
        """Bets on harm; yields who may be mended by the same measure, the factors for that, and who has it."""
        telling, lowest = False, np.zeros(self.workers)
        if record.cosines is not None:
            cosines = _values(record.cosines)
            known = there & ~np.isnan(cosines)
            cosines = np.where(known, cosines, 0.0)
            most = np.clip(WITHIN * self._cosines.size, TELLING, 1.0)
            lowest, mean = self._cosines.add(cosines, known, self._used & ~self._suspect & self._here)
            telling = mean >= TELLING
            if not self.similar_data:
                allowed = np.where(lowest < 0, NEAR - lowest, 0.0)
                self._harmful.add(on_a_mean(np.clip((-cosines - allowed) / most, -1, 1)), known)
                yield self._is(HARMS), on_a_mean(np.clip(cosines / most, -1, 1)), known
        # With samples, a worker that is never used may be harmless: only its score counts.
        ranked = record.scores is not None or record.cosines is None
        if record.kept is not None and ranked and there.sum() > 1:
            below, slack = self._places.add(_scores(record, there), sum(record.kept), self._suspect)
            slack = SLACK_OF_SIMILAR if self.similar_data else slack
            judged = there
            if record.cosines is not None and not self.similar_data:
                judged = there & (lowest >= TELLING)
            self._worse.add(on_a_mean((below - slack) / (1 + slack)), judged)
            who, half_as_bad = self._is(WORSE), np.clip((slack + self._places.level) / 2, 0.0, 0.9)
            yield who, on_a_mean((self._line - below) / (1 - np.minimum(self._line, 0.9))), there & telling
            self._line = np.where(who, np.maximum(self._line, half_as_bad), self._line)

    def _judge(self, step: int) -> list[int]:
        """Who is suspect or mended now, and until when suspects rest."""
        evidence = (self._failing.money + self._harmful.money + self._worse.money) / 3
        self._most = np.maximum(self._most, evidence)
        named: list[int] = np.flatnonzero(~self._suspect & (evidence >= self.threshold)).tolist()
        for worker in named:
            self._suspect[worker], self._since[worker] = True, step
            reason, self._line[worker] = self._why(worker)
            self._reason[worker] = REASONS.index(reason)
            self._mended.restart(worker)
            self._rest[worker], self._back[worker] = REST, step + 1 + REST
        for worker in np.flatnonzero(self._suspect & (self._mended.money >= self.threshold)).tolist():
            self._suspect[worker], self._since[worker], self._most[worker] = False, step, 1.0
            self._failing.restart(worker)
            self._harmful.restart(worker)
            self._worse.restart(worker)
        trial_is_over = step + 1 >= self._back + TRIAL
        failed = self._suspect & trial_is_over & (self._mended.money <= 1)
        self._rest[failed] *= 2
        self._back[failed] = step + 1 + self._rest[failed]
        return named

    def _why(self, worker: int) -> tuple[str, float]:
        """The reason of a new verdict, and the line below which the worker would be mended."""
        fails, harms, worse = (bets.money[worker] for bets in (self._failing, self._harmful, self._worse))
        if max(harms, worse) > fails:
            level = float(np.clip(self._places.level[worker] / 2, 0.01, 0.9))
            return (HARMS, 0.5) if harms >= worse else (WORSE, level)
        errors = {kind: n for kind, n in self._tally.errors(worker).items() if kind != ErrorKind.STALE}
        rate = sum(errors.values()) / max(1, self.steps - int(self._tally.quarantined[worker]))
        large = 2 * errors.get(TOO_LARGE, 0) > sum(errors.values())
        return TOO_LARGE if large else FAILS, min(0.9, max(rate / 2, 10 * self.failure_rate))

    def _is(self, *reasons: str) -> Mask:
        return self._suspect & np.isin(self._reason, [REASONS.index(reason) for reason in reasons])

    @property
    def _here(self) -> Mask:
        """[m] who was asked lately: with names, workers leave; some are asked at a few steps only."""
        here: Mask = self._asked >= self._asked.max(initial=0) - self._away
        return here

    @property
    def num_here(self) -> int:
        """How many workers take part: without those that left."""
        return int((self._here | self._rests).sum())

    @property
    def _rests(self) -> Mask:
        """[m] the suspects whose rest began while they took part, not after a trial without them."""
        rests: Mask = self._suspect & (self._back - self._rest <= self._asked + self._away)
        return rests

    @property
    def _away(self) -> int:
        """The steps without being asked after which a worker has left, unless it rests."""
        return max(TRIAL, AWAY * self.workers)

    def __str__(self) -> str:
        """The suspects in a sentence or two, who is left out without a verdict, and who is mended."""
        if not self.steps:
            return "There is no step yet."
        rows = self.rows
        who = [row.label for row in rows if row.verdict == "suspect"]
        left_out = [row.label for row in rows if row.left_out and row.verdict != "suspect"]
        mended = [row.label for row in rows if row.verdict == "mended"]
        text = "No worker is suspect."
        if who:
            text = f"{len(who)} of {self.workers} workers {'is' if len(who) == 1 else 'are'} suspect: {_listed(who)}."
        if 2 * len(who) > self.workers:
            others = " the rule trusts the wrong workers, or" if len(who) < self.workers else ""
            text += f" That is the majority: either they are faulty, or{others} the model has diverged."
        if left_out:
            text += f" Left out of nearly all updates lately, without proof of a fault: {_listed(left_out)}."
        if mended:
            text += f" Suspect before, and mended: {_listed(mended)}."
        return text

    @property
    def suspects(self) -> list[int]:
        return [int(worker) for worker in np.flatnonzero(self._suspect)]

    @property
    def suspect_names(self) -> list[str]:
        """The names of the suspects; the numbers as text, if workers have no names."""
        return [self.names[worker] for worker in self.suspects]

    @property
    def rows(self) -> list[Row]:
        """One per worker, in order."""
        tally = self._tally
        recently_counted, recently_dropped, recently_expected = tally.recent()
        machines = self._machines if len(set(self._machines.values())) > 1 else {}
        here = self._here
        return [
            Row(
                worker=i,
                name=self.names[i],
                machine=machines.get(str(i), ""),
                verdict="suspect" if self._suspect[i] else "mended" if self._since[i] >= 0 else "",
                reason=REASONS[self._reason[i]],
                since=int(self._since[i]) if self._since[i] >= 0 else None,
                evidence=float(self._most[i]),
                steps=self.steps - int(tally.quarantined[i]),
                dropped=_ratio(tally.dropped[i], tally.counted[i]),
                recently=_ratio(recently_dropped[i], recently_counted[i]),
                left_out=bool(
                    here[i]
                    and recently_expected[i] >= ENOUGH
                    and recently_counted[i] - recently_dropped[i] <= HARDLY * recently_expected[i]
                ),
                rank=_ratio(tally.ranks[i], tally.ranked[i]),
                cosine=_ratio(tally.cosines[i], tally.compared[i]),
                streak=int(tally.longest[i]),
                errors=tally.errors(i),
                late=int(tally.late[i]),
                quarantined=int(tally.quarantined[i]),
                faulty=_ratio(tally.faulty[i], self.steps) if tally.knows_faulty else None,
            )
            for i in range(len(recently_counted))  # a thread that serves metrics may ask while workers join
        ]

    def resting(self, step: int, most: int) -> list[int]:
        """The suspects in quarantine at a step: at most `most`, those with the oldest verdicts.

        A suspect rests, is tried for some steps, and rests for twice as long unless it has improved.
        """
        found = np.flatnonzero(self._rests & (step < self._back)).tolist()
        return sorted(sorted(found, key=lambda worker: self._since[worker])[:most])


def ledger_of(
    records: Iterable[Record], workers: int, failure_rate: float = FAILURE_RATE, similar_data: bool = False
) -> Ledger:
    """The ledger of a run, from its records in order; `workers` is 0 for a run whose workers have names."""
    ledger = Ledger(workers, failure_rate=failure_rate, similar_data=similar_data)
    for record in records:
        ledger.add(record)
    return ledger


def _scores(record: Record, there: Mask) -> Values:
    """[m] higher is better; NaN for workers that are not there."""
    if record.scores is not None:
        scores = np.array([-math.inf if score is None else score for score in record.scores])
    else:
        scores = np.array(record.kept, dtype=float)
    return np.where(there, scores, math.nan)


def _values(numbers: list[float | None]) -> Values:
    return np.array([math.nan if number is None else number for number in numbers])


def _listed(names: Sequence[str]) -> str:
    """At most `MOST_NAMED` of them."""
    rest = len(names) - MOST_NAMED + 1
    shown = names if rest <= 1 else [*names[: MOST_NAMED - 1], f"{rest} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _ratio(part: float, whole: int) -> float | None:
    return float(part / whole) if whole else None
