"""Which workers are suspect, from the records of a run.

Being dropped is not evidence: some worker is dropped at every step. Instead, each worker is compared with the trusted
workers at every step: as many as the rule kept at the step before, those that ranked highest until then. `below` is
the share of them that scored higher than the worker, minus the share that scored lower. For a good worker among good
ones its mean is 0 for any distribution of scores, because earlier steps do not tell who scores higher next.

Evidence: the value of a one-unit bet that `below` is above 0 for this worker. For a good worker the value ever reaches
N with a probability of at most 1 / N, however long the run is. N = workers / ERROR_RATE makes a worker suspect, so a
run without faults ever has a suspect with a probability of at most ERROR_RATE. Part of the unit is bet later, so that a
fault that begins late is found too. A suspect is mended once a bet that it still is as bad has lost in the same way.

Good workers may have different data. Therefore `below` has to exceed a slack: several times the long-run spread of
the workers beyond chance, measured within the groups that wide gaps between them leave. Faulty workers far from the
good ones leave the slack small; workers that all differ make it large. Suspects do not count for it, and a worker gets
none at steps where it failed.

Workers may join. Half of the ERROR_RATE is then for those that were there at the first step, n of them, and half for
the others: with m workers, 2 * m**2 / (n * ERROR_RATE) makes a suspect. The chances of all good workers, whatever m is
when their evidence is highest, sum to at most n * 1 / (2 * n) + sum_{m > n} n / (2 * m**2) <= 1 of ERROR_RATE.

Limits: the ledger knows only what the rule sees. If faulty workers score higher than good ones, the good are suspect.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zeno.records.betting import Bets, Places, Values, num_above_and_below
from zeno.records.record import Record
from zeno.records.state import state_of, with_state
from zeno.records.tally import Tally

ERROR_RATE = 0.01
REST, TRIAL = 100, 50  # steps in quarantine, doubled each time, and steps of the trial after it
MOST_NAMED = 20  # workers in a sentence


@dataclass(frozen=True)
class Row:
    """The ledger's view of one worker."""

    worker: int
    name: str  # the number as text, if the worker has no name
    verdict: str  # "suspect", "mended" (no longer suspect), or "" (too little evidence)
    since: int | None  # the step of the verdict
    evidence: float  # the highest so far: 1 says nothing, `Ledger.threshold` makes a suspect
    steps: int  # at which it was asked
    dropped: float | None  # share of the steps at which it was asked and some worker was kept; None without such steps
    recently: float | None  # the same over the last `RECENT` steps of the run
    rank: float | None  # mean rank among those asked, 1 is best; None where the rule does not rank
    streak: int  # the most consecutive steps at which it was dropped
    errors: dict[str, int]  # steps without a usable reply, by kind
    late: int  # replies that arrived after their step was over
    quarantined: int  # steps at which it was not asked, also before it joined and after it left
    faulty: float | None  # share of the steps with an injected fault; None when unknown


class Ledger:
    """What the records of a run say about each worker. Verdicts are valid at any time."""

    def __init__(self, workers: int, error_rate: float = ERROR_RATE) -> None:
        self.workers = workers
        self.names = [str(worker) for worker in range(workers)]
        self.error_rate = error_rate
        self._first: int | None = None  # workers at the first step, if workers may join
        self.steps = 0
        self._tally = Tally(workers)
        self._places = Places(workers)
        self._against = Bets(workers)
        self._mended = Bets(workers)
        self._suspect = np.zeros(workers, dtype=bool)
        self._since = np.full(workers, -1)
        self._line = np.zeros(workers)  # a suspect is mended if its `below` stays under this
        self._rest = np.zeros(workers, dtype=int)  # steps of its current rest in quarantine
        self._back = np.zeros(workers, dtype=int)  # the step at which its next trial begins

    @property
    def threshold(self) -> float:
        """The evidence that makes a suspect."""
        if self._first is None:
            return self.workers / self.error_rate
        return 2 * self.workers**2 / (self._first * self.error_rate)

    def join(self, names: Sequence[str]) -> None:
        """Adds workers; what is known about the others does not change.

        A run whose workers have names starts with `Ledger(0)`.
        """
        before, workers = self.workers, self.workers + len(names)
        larger = Ledger(workers, self.error_rate)
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

    def add(self, record: Record) -> None:
        """Adds the next step."""
        if record.joined:
            self.join(record.joined)
        scores = _scores(record, self.workers)
        asked = ~np.isnan(scores)
        num_asked = int(asked.sum())
        above, beneath = num_above_and_below(scores, scores[asked])
        self.steps += 1
        self._tally.add(record, asked, 1 + above + (num_asked - 1 - above - beneath) / 2)
        if num_asked < 2:
            return
        place = (beneath - above) / (num_asked - 1)
        below, below_replies, slack = self._places.add(scores, asked, place, sum(record.kept or ()), self._suspect)
        allowed = np.full(self.workers, slack)
        allowed[list(record.errors)] = 0.0  # unusual data make no worker fail
        self._against.add((below - allowed) / (1 + slack), asked)
        if self._suspect.any():
            # Failures of others mend nobody.
            self._mended.add((self._line - below_replies) / (1 - self._line), asked & self._suspect)
        half_as_bad = np.clip((slack + self._places.level) / 2, 0.0, 0.9)
        self._line = np.where(self._suspect, np.maximum(self._line, half_as_bad), 0.0)
        for worker in np.flatnonzero(~self._suspect & (self._against.money >= self.threshold)).tolist():
            self._suspect[worker], self._since[worker] = True, record.step
            self._line[worker] = half_as_bad[worker]
            self._mended.restart(worker)
            self._rest[worker], self._back[worker] = REST, record.step + 1 + REST
        for worker in np.flatnonzero(self._suspect & (self._mended.money >= self.threshold)).tolist():
            self._suspect[worker], self._since[worker] = False, record.step
            self._against.restart(worker)
        trial_is_over = record.step + 1 >= self._back + TRIAL
        failed = self._suspect & trial_is_over & (self._mended.money <= 1)
        self._rest[failed] *= 2
        self._back[failed] = record.step + 1 + self._rest[failed]

    def __str__(self) -> str:
        """The suspects in a sentence or two."""
        who = self.suspect_names
        if not who:
            return "No worker is suspect." if self.steps else "There is no step yet."
        shown = who if len(who) <= MOST_NAMED else [*who[: MOST_NAMED - 1], f"{len(who) - MOST_NAMED + 1} more"]
        listed = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
        text = f"{len(who)} of {self.workers} workers {'is' if len(who) == 1 else 'are'} suspect: {listed}."
        if 2 * len(who) > self.workers:
            text += " That is the majority: either they are faulty, or the others are and the rule trusts them."
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
        recently_counted, recently_dropped = tally.recent()
        return [
            Row(
                worker=i,
                name=self.names[i],
                verdict="suspect" if self._suspect[i] else "mended" if self._since[i] >= 0 else "",
                since=int(self._since[i]) if self._since[i] >= 0 else None,
                evidence=float(self._against.most[i]),
                steps=self.steps - int(tally.quarantined[i]),
                dropped=_ratio(tally.dropped[i], tally.counted[i]),
                recently=_ratio(recently_dropped[i], recently_counted[i]),
                rank=_ratio(tally.ranks[i], tally.ranked[i]),
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
        found = [worker for worker in self.suspects if step < self._back[worker]]
        return sorted(sorted(found, key=lambda worker: self._since[worker])[:most])


def ledger_of(records: Iterable[Record], workers: int) -> Ledger:
    """The ledger of a run, from its records in order; `workers` is 0 for a run whose workers have names."""
    ledger = Ledger(workers)
    for record in records:
        ledger.add(record)
    return ledger


def _scores(record: Record, workers: int) -> Values:
    """[m] higher is better; minus infinity for unusable replies, NaN for workers that were not asked."""
    if record.scores is not None:
        scores = np.array([-math.inf if score is None else score for score in record.scores])
    elif record.kept is not None:
        scores = np.array(record.kept, dtype=float)
    else:
        scores = np.zeros(workers)
    scores[list(record.errors)] = -math.inf
    scores[record.quarantined] = math.nan
    return scores


def _ratio(part: float, whole: int) -> float | None:
    return float(part / whole) if whole else None
