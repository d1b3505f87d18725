"""The server of a run: one step from the replies of a cluster to the new parameters."""

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from zeno.problem.dataset import Dataset
from zeno.problem.problem import Problem
from zeno.problem.threads import one_thread
from zeno.rules.rule import Rule, TooFewUsable
from zeno.server.core import Core, Step
from zeno.server.samples import DatasetSamples
from zeno.server.scorers import Scorer, ThreadScorer
from zeno.server.step_oracle import StepOracle
from zeno.workers.cluster import NOBODY, Cluster


class Engine:
    """Asks a cluster for gradients and holds the parameters as one flat vector."""

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
        self.optimizer = optimizer
        self.schedule = schedule
        self.params: nn.Parameter = optimizer.param_groups[0]["params"][0]
        self._need = max(1, cluster.size - rule.most_faulty(cluster.size))  # usable replies
        self._thread = ThreadScorer() if rule.scores_on_arrival and cluster.remote and scorer is None else None
        self._ahead: ThreadPoolExecutor | None = None  # where the rule prepares a step while workers compute
        if cluster.remote and rule.samples and not rule.scores_on_arrival:
            self._ahead = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))
        source = DatasetSamples(dataset, samples, seed)
        self.core = Core(problem, rule, source, scorer or self._thread, check_on_one_core=True, seed=seed)
        self.core.state = rule.first_state(source.secret)
        self._trials: StepOracle | None = None  # of the trials since the parameters last changed

    def step(self, number: int, skip: Collection[int] = NOBODY) -> Step:
        """One step. Workers in `skip` are left out, as long as the rule has enough candidates without them."""
        buffers, oracle = self._begin(number)
        step = Step(self.core, number, self.cluster.size, self.params.detach(), self._lr, oracle=oracle)
        with self._meanwhile(oracle), step.clock("gradients"):
            self._collect(step, skip, buffers)
        step.run_rule()
        step.update(self._apply)
        return step

    def trial(self, candidates: Tensor, number: int) -> Tensor | None:
        """The update [d] that the rule would return for these candidates [m, d]; None if it would skip the step.

        Nothing changes, and no step is scored on the same samples. For faults that know the rule: all trials of a step
        are on the same samples, which are drawn once.
        """
        if self._trials is None or self._trials.step != number:
            self._trials = StepOracle(self.core, "trial", number, self.params.detach(), self._lr)
        try:
            return self.rule(candidates, self._trials, self.core.state).update
        except TooFewUsable:
            return None

    def refresh_statistics(self) -> None:
        """Before somebody reads the running statistics of BatchNorm, as evaluation and saving do."""
        self.core.statistics.refresh(self.params.detach())

    def state_to_save(self) -> dict[str, Any]:
        """All that another engine needs to continue from here, between two steps."""
        self.refresh_statistics()
        return {
            "params": self.params.detach(),
            "buffers": self.problem.buffers,
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "rule": self.core.state,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_to_save` returned."""
        self._trials = None
        with torch.no_grad():
            self.params.copy_(state["params"])
        self.problem.load_buffers(state["buffers"])
        self.core.statistics.due = None  # the buffers that were loaded are up to date
        self.optimizer.load_state_dict(state["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])
        self.core.state = state["rule"]

    def close(self) -> None:
        """Ends the threads that use the model, if there are any. A scorer that was passed in is not closed."""
        if self._thread is not None:
            self._thread.close()
        if self._ahead is not None:
            self._ahead.shutdown(cancel_futures=True)

    @property
    def _lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def _begin(self, number: int) -> tuple[dict[str, Tensor], StepOracle | None]:
        """The buffers for the workers of a step, and its oracle if the rule can ask it while they compute."""
        if self.problem.trains_on_running_statistics:
            self.refresh_statistics()
        buffers = {name: buffer.clone() for name, buffer in self.problem.buffers.items()}
        if self._ahead is None:
            return buffers, None
        oracle = StepOracle(self.core, "score", number, self.params.detach(), self._lr)
        oracle.prepare(self._ahead)
        return buffers, oracle

    @contextmanager
    def _meanwhile(self, oracle: StepOracle | None) -> Iterator[None]:
        """While workers compute and the rule prepares the step; ends when it has.

        MKL has one number of threads for the whole process. It must not change meanwhile, or last bits would.
        """
        if oracle is None:
            yield
            return
        with one_thread():
            try:
                yield
            finally:
                with oracle.clock("scores"):
                    oracle.finish()

    def _collect(self, step: Step, skip: Collection[int], buffers: Mapping[str, Tensor]) -> None:
        """Asks the workers; those in `skip` only if too few of the others send something usable."""
        everyone = set(range(self.cluster.size))
        skipped = everyone.intersection(skip)
        asked = everyone - skipped
        self._ask(step, buffers, asked, skipped, self._need - len(skipped))
        missing = self._need - (len(asked) - len(step.errors))
        if skipped and missing > 0:
            self._ask(step, buffers, skipped, asked, missing)
        else:
            step.unasked = sorted(skipped)

    def _ask(
        self, step: Step, buffers: Mapping[str, Tensor], workers: Collection[int], skip: Collection[int], need: int
    ) -> None:
        replies = self.cluster.gradients(step.x, buffers, step.number, max(1, need), skip)
        step.receive(replies, workers)

    def _apply(self, update: Tensor | None) -> None:
        self._trials = None
        self.params.grad = update
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
