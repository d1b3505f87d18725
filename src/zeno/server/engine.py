"""The server of a run: one step from the replies of a cluster to the new parameters.

A reply that is missing, stale, of the wrong size or type, or not finite is a fault of that worker only: its row stays
NaN, and the reason goes on the record.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from zeno.problem import Problem
from zeno.problem.dataset import Batch, Dataset, draw, generator
from zeno.problem.threads import one_thread
from zeno.rules import Aggregate, Rule, TooFewUsable, bears
from zeno.server.core import STATISTICS_SAMPLES, Asked, Clock, Oracles, error_in, samples_for
from zeno.server.scorers import Scorer, ThreadScorer
from zeno.workers import NOBODY, Cluster


@dataclass(frozen=True, eq=False)
class Step:
    """What one step came to."""

    lr: float
    aggregate: Aggregate | None  # None: the step was skipped
    skipped: str | None  # why
    errors: dict[int, str]  # what was wrong with a worker's reply
    late: list[int]  # workers whose reply to an earlier step came now, and was dropped
    unasked: list[int]  # workers that were left out
    seconds: dict[str, float]  # by phase: gradients, scores, rule, update


class Engine:
    """Asks a cluster, and holds the parameters, and samples of its own that no worker chooses."""

    def __init__(
        self,
        problem: Problem,
        rule: Rule,
        cluster: Cluster,
        dataset: Dataset,
        samples: Tensor,  # which samples of the dataset are the server's
        optimizer: Optimizer,  # over one flat vector: the parameters [d]
        schedule: LRScheduler | None = None,
        seed: int = 0,
        scorer: Scorer | None = None,  # None: in this process
    ) -> None:
        self.problem = problem
        self.rule = rule
        self.cluster = cluster
        self.dataset = dataset
        self.samples = samples
        self.optimizer = optimizer
        self.schedule = schedule
        self.seed = seed
        self.params: nn.Parameter = optimizer.param_groups[0]["params"][0]
        self.state: object = None  # the rule's memory
        self.candidates = self.params.detach().new_empty(cluster.size, self.params.numel())  # [m, d]
        told = bears(rule)
        self._need = 1 if told is None else max(1, cluster.size - told)  # replies that the rule cannot do without
        on_arrival = getattr(rule, "on_arrival", False)
        self._thread = ThreadScorer() if on_arrival and cluster.remote and scorer is None else None
        self._scorer = (scorer or self._thread) if on_arrival else None
        self._refresh_buffers(step=0)

    def step(self, step: int, skip: Collection[int] = NOBODY) -> Step:
        """One step. Workers in `skip` are left out, as long as the rule has enough candidates without them."""
        lr = float(self.optimizer.param_groups[0]["lr"])
        params = self.params.detach()
        clock = Clock()

        descent = Asked(lr, self._oracles("score", params, lr, step), clock, self.candidates, self._scorer)
        with clock("gradients"):
            errors, late, unasked = self._collect(params, step, skip, descent)
        aggregate, skipped = None, None
        with clock("rule"):
            try:
                aggregate = self.rule(self.candidates, descent, self.state)
            except TooFewUsable as error:
                skipped = str(error)

        with clock("update"):
            self.params.grad = None if aggregate is None else aggregate.update
            self.optimizer.step()
            if self.schedule is not None:
                self.schedule.step()
            if aggregate is not None:
                self.state = aggregate.state
                self._refresh_buffers(step + 1)
        return Step(lr, aggregate, skipped, errors, late, unasked, clock.seconds)

    def trial(self, candidates: Tensor, step: int) -> Tensor | None:
        """What the rule would make [d] of these candidates [m, d] now, judged on samples that no step is judged on.

        None: it would skip the step. Nothing is changed by it. For faults that know the rule.
        """
        lr = float(self.optimizer.param_groups[0]["lr"])
        oracles = self._oracles("trial", self.params.detach(), lr, step)
        try:
            return self.rule(candidates, Asked(lr, oracles, Clock()), self.state).update
        except TooFewUsable:
            return None

    def state_to_save(self) -> dict[str, Any]:
        """All that a later server needs to go on as this one would, between two steps."""
        return {
            "params": self.params.detach(),
            "buffers": self.problem.buffers,
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "rule": self.state,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_to_save` returned."""
        with torch.no_grad():
            self.params.copy_(state["params"])
        self.problem.load_buffers(state["buffers"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])
        self.state = state["rule"]

    def close(self) -> None:
        """Ends the thread that scores on arrival, if there is one; a scorer that was given is its giver's."""
        if self._thread is not None:
            self._thread.close()

    def _collect(
        self, params: Tensor, step: int, skip: Collection[int], descent: Asked
    ) -> tuple[dict[int, str], list[int], list[int]]:
        """Puts the replies into the rows of the candidates, and NaN where there is none.

        Returns errors by worker, who was late, and who was not asked.
        """
        everyone = set(range(self.cluster.size))
        asked = everyone.difference(skip)
        missing = len(everyone) - len(asked)
        errors, late = self._ask(params, step, asked, max(1, self._need - missing), descent)
        usable = len(asked) - len(errors)
        if missing and usable < self._need:  # better suspects than no step
            more_errors, more_late = self._ask(params, step, everyone - asked, self._need - usable, descent)
            asked, errors, late = everyone, {**errors, **more_errors}, late + more_late
        unasked = sorted(everyone - asked)
        for worker in (*errors, *unasked):
            self.candidates[worker] = torch.nan
        return errors, late, unasked

    def _ask(
        self, params: Tensor, step: int, whom: Collection[int], need: int, descent: Asked
    ) -> tuple[dict[int, str], list[int]]:
        errors = dict.fromkeys(sorted(whom), "sent no reply")
        late = []
        skip = set(range(self.cluster.size)).difference(whom)
        for reply in self.cluster.gradients(params, self.problem.buffers, step, need=need, skip=skip):
            if reply.late:
                late.append(reply.worker)
                continue
            if reply.worker in skip:
                continue
            with one_thread():  # a second one would spin for a while after each reply, on a core that a worker needs
                error = error_in(reply, step, params)
                if error is None:
                    self.candidates[reply.worker] = reply.gradient.detach()  # type: ignore[union-attr]
            if error is None:
                errors.pop(reply.worker, None)
                descent.arrived(reply.worker)
            else:
                errors[reply.worker] = error
        return errors, late

    def _oracles(self, role: str, params: Tensor, lr: float, step: int) -> Oracles:
        """What fresh samples say: of number 0 as many as the rule works with, of the others as many as it asks for."""
        usual = samples_for(self.rule)
        return lambda number=0, size=usual: self.problem.at(params, lr, self._draw(role, step, size, number))

    def _draw(self, role: str, step: int, size: int, number: int = 0) -> Batch:
        return self.dataset.batch(draw(self.samples, size, generator(self.seed, role, number, step)))

    def _refresh_buffers(self, step: int) -> None:
        if self.problem.norms:
            self.problem.refresh(self.params.detach(), self._draw("statistics", step, STATISTICS_SAMPLES).inputs)
