"""One step of the server: check every reply, score the candidates, aggregate them, update the model.

A run (`engine`), a user's own loop (`server`) and ranks under torchrun (`distributed`) all take this step:

    step = Step(core, number, workers, x, lr)
    step.receive(replies, expected)
    step.run_rule()
    step.update(apply)
    step.record()

A reply that is missing, stale, of the wrong size or type, or not finite is a fault of that worker only: its row of the
candidates is NaN, and the reason goes on the record.

Shapes: m workers, d parameters, n samples.
"""

import math
from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from zeno.problem.local_training import LocalTraining
from zeno.problem.nested import NestedBatch
from zeno.problem.problem import Problem
from zeno.problem.threads import one_thread
from zeno.records.record import Record, finite, rounded
from zeno.rules.aggregate import checked, likeness_of
from zeno.rules.linalg.passes import dots, largest_number, squared_norms
from zeno.rules.rule import Aggregate, Rule, TooFewUsable
from zeno.rules.streaming import Arrivals
from zeno.rules.zeno import Zeno
from zeno.server.members import Members
from zeno.server.samples import SampleSource
from zeno.server.scorers import Scorer
from zeno.server.step_oracle import StepOracle
from zeno.server.update_check import check_update
from zeno.workers.checks import NOT_FINITE, gradient_of
from zeno.workers.reply import NO_REPLY, Reply, ReplyError

STATISTICS_SAMPLES = 256  # that running statistics are computed from


@dataclass(eq=False)
class Core:
    """What the server keeps from step to step."""

    problem: Problem
    rule: Rule
    samples: SampleSource
    scorer: Scorer | None = None  # scores candidates as they arrive, if the rule allows it
    check_on_one_core: bool = False  # leave the other cores to the workers
    seed: int = 0  # of the dropout in the server's own gradient
    state: object = None  # what the rule remembers
    candidates: Tensor | None = None  # [m, d], allocated when first needed
    local_training: LocalTraining | None = None  # of workers that send displacements; None: they send gradients

    def __post_init__(self) -> None:
        self.statistics = RunningStatistics(self.problem, self.samples)


class Step:
    """One step from the parameters x [d]. With `streaming`, Zeno keeps only the best m - trim candidates.

    With `members`, the `workers` are those that are there: replies are by their order, results by their numbers. An
    `oracle` may be passed in that has begun its work before the candidates arrived.
    """

    def __init__(
        self,
        core: Core,
        number: int,
        workers: int,
        x: Tensor,
        lr: float | Tensor,
        streaming: bool = False,
        members: Members | None = None,
        oracle: StepOracle | None = None,
    ) -> None:
        self.core = core
        self.number = number
        self.workers = workers
        self.members = members
        self.x = x
        self.lr = float(lr.max()) if isinstance(lr, Tensor) else lr  # the largest one
        scorer = core.scorer if core.rule.scores_on_arrival else None
        self._oracle = oracle or StepOracle(core, "score", number, x, lr, scorer=scorer)
        self.clock = self._oracle.clock
        self.seconds = self.clock.seconds
        self.errors: dict[int, ReplyError] = {}  # what was wrong with a worker's reply
        self.late: list[int] = []  # workers whose reply to an earlier step arrived now and was discarded
        self.unasked: list[int] = []  # workers that were left out
        self.arrivals: list[list[int]] | None = None  # of an asynchronous step: [worker, version], in order
        self.lost: list[int] = []  # workers among these from which no gradient came
        self.aggregate: Aggregate | None = None  # None: the step is skipped
        self.failure: TooFewUsable | None = None  # why it is skipped
        self._largest: dict[int, float] = {}  # the largest magnitude in each usable candidate
        self._best: Arrivals | None = None
        if streaming and isinstance(core.rule, Zeno):
            self._best = Arrivals(core.rule, workers, self._oracle, x)

    @property
    def skipped(self) -> str | None:
        """Why the step made no update."""
        return None if self.failure is None else str(self.failure)

    @property
    def note(self) -> str | None:
        """What the rule could not do as documented, and which mixtures it could not try."""
        notes = (None if self.aggregate is None else self.aggregate.note, self._oracle.note)
        return "; ".join(note for note in notes if note is not None) or None

    def receive(self, replies: Iterable[Reply], expected: Collection[int]) -> None:
        """Checks each reply and keeps its gradient; expected workers without a usable one are in `errors`."""
        self.errors.update(dict.fromkeys(sorted(expected), NO_REPLY))
        for reply in replies:
            if reply.late:
                self.late.append(reply.worker)
            elif reply.worker in expected and reply.worker not in self._largest:  # its first usable reply counts
                error = self._receive_one(reply)
                if error is None:
                    self.errors.pop(reply.worker, None)
                else:
                    self.errors[reply.worker] = error

    def _receive_one(self, reply: Reply) -> ReplyError | None:
        """Copies the gradient of a reply; returns what is wrong with it, if anything.

        A worker may share the memory of its gradient and write to it at any time: from here on only the copy is read.
        """
        with one_thread() if self.core.check_on_one_core else nullcontext():
            gradient = gradient_of(reply, self.number, self.x)
            if isinstance(gradient, ReplyError):
                return gradient
            row = self._rows[reply.worker] if self._best is None else self._best.free_row
            largest = largest_number(row.copy_(gradient))
            if not math.isfinite(largest):
                return NOT_FINITE
            self._largest[reply.worker] = largest
            if self._best is not None:
                self._best.add(reply.worker, row)
                return self._oracle.take_errors().get(0)  # it was the only candidate
        self._oracle.arrived(reply.worker, self._rows)
        return None

    @cached_property
    def _rows(self) -> Tensor:
        """[m, d], the memory that gradients are copied to; the same at every step."""
        if self.core.candidates is None or self.core.candidates.shape != (self.workers, len(self.x)):
            self.core.candidates = self.x.new_empty(self.workers, len(self.x))
        return self.core.candidates

    def run_rule(self) -> Aggregate | None:
        """The rule's aggregate of what was received; None, with the `failure`, if too little of it is usable."""
        with self.clock("rule"):
            try:
                if self._best is not None:
                    self.aggregate = self._best.result()
                else:
                    rule, candidates = self.core.rule, self._candidates()
                    self._oracle.received = candidates
                    state = self.core.state
                    state = state if self.members is None else self.members.state_of(rule, state)
                    self.aggregate = checked(rule(candidates, self._oracle, state), rule, *candidates.shape)
                check_update(self.core.rule, self.aggregate, self._largest)
            except TooFewUsable as failure:
                self.aggregate, self.failure = None, failure
        if self._best is None:
            self.errors |= self._oracle.take_errors()
            if self.aggregate is not None and self.aggregate.likeness is None and self.core.rule.samples:
                self.aggregate = self.aggregate._replace(likeness=self._likeness())
        if self.members is not None:
            self._number_workers(self.members)
        return self.aggregate

    def _likeness(self) -> Tensor | None:
        """[2, m] the candidates beside the server's own gradient, for verdicts; None if the loss has no gradient."""
        try:
            own = self._oracle.gradient()
        except Exception:  # the scores of Zeno need no gradient, and the rule has done its work
            return None
        with self.clock("scores"):
            return likeness_of(dots(self._rows, own), squared_norms(self._rows), squared_norms(own[None])[0])

    def _number_workers(self, members: Members) -> None:
        """From the order of those that are there to the numbers of all workers."""
        self.errors = {members.there[worker]: error for worker, error in self.errors.items()}
        self.unasked = sorted([*(members.there[worker] for worker in self.unasked), *members.absent])
        if self.aggregate is not None:
            self.aggregate = members.in_terms_of_everyone(self.core.rule, self.aggregate, self.core.state)

    def _candidates(self) -> Tensor:
        """[m, d], a row of NaN for each worker without a usable reply."""
        self._rows[[*self.errors, *self.unasked]] = torch.nan
        return self._rows

    def update(self, apply: Callable[[Tensor | None], None]) -> None:
        """Applies the update [d], None if the step is skipped, and keeps what the rule remembers."""
        with self.clock("update"):
            self._oracle.finish()
            apply(None if self.aggregate is None else self.aggregate.update)
            if self.aggregate is not None:
                self.core.state = self.aggregate.state
                self.core.statistics.due = self.number + 1

    def record(self, **more: Any) -> Record:
        """What is written down about this step; `more` are other fields of a record."""
        found: dict[str, Any] = {"kept": None, "scores": None}
        if self.aggregate is not None:
            scores = self.aggregate.scores
            found = {
                "kept": self.aggregate.kept.tolist(),
                "scores": None if scores is None else finite(scores.tolist()),
                "weights": rounded(self.aggregate.weights.tolist()),
                "own": rounded([self.aggregate.own])[0],
            }
            if self.aggregate.likeness is not None:
                found["cosines"], found["lengths"] = map(rounded, self.aggregate.likeness.tolist())
        return Record(
            step=self.number,
            lr=self.lr,
            quarantined=self.unasked,
            errors=self.errors,
            late=self.late,
            skipped=self.skipped,
            note=self.note,
            arrivals=self.arrivals,
            lost=self.lost,
            seconds=self.seconds,
            **found,
            **more,
        )


def most_resting(rule: Rule, workers: int) -> int:
    """How many workers may be in quarantine at once: as many as the rule tolerates, or a minority."""
    return (workers - 1) // 2 if rule.tolerates is None else rule.tolerates


@dataclass(eq=False)
class RunningStatistics:
    """BatchNorm's running statistics: from the server's samples, never from a worker, refreshed when they are read."""

    problem: Problem
    samples: SampleSource
    due: int | None = 0  # the step whose parameters they must be computed for; None: they are up to date
    _drawn: Tensor | NestedBatch | None = None  # ahead: inputs [n, ...], or batches

    def draw(self, step: int) -> None:
        """Draws the samples of the next refresh now: whatever can fail does so before the model changes."""
        if self.problem.norms:
            batch = self.samples.take(STATISTICS_SAMPLES, "statistics", step)
            self._drawn = batch if isinstance(batch, NestedBatch) else batch.inputs

    def refresh(self, x: Tensor) -> None:
        """Computes them for the parameters x [d], unless they are up to date."""
        if self.problem.norms and self.due is not None:
            if self._drawn is None:
                self.draw(self.due)
            assert self._drawn is not None
            self.problem.refresh(x, self._drawn)
            self.due = self._drawn = None
