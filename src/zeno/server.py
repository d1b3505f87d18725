"""The server: one step from the workers' replies to the new parameters.

Nothing that a worker sends is used before it was checked. A reply that is missing, stale, of the wrong size or
type, or not finite is a fault of that worker only: its row stays NaN, and the reason goes on the record.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from zeno.cluster import Cluster, Reply
from zeno.data import Batch, Dataset, draw, generator
from zeno.problem import Oracle, Problem
from zeno.rules import Aggregate, Rule, TooFewUsable
from zeno.rules.memory import all_finite

STATISTICS_SAMPLES = 256  # of the server's own, for the running statistics of each step


@dataclass(frozen=True, eq=False)
class Step:
    """What one step came to."""

    lr: float
    aggregate: Aggregate | None  # None: the step was skipped
    skipped: str | None  # why
    errors: dict[int, str]  # what was wrong with a worker's reply
    seconds: dict[str, float]  # by phase: gradients, scores, rule, update


class Server:
    """Holds the parameters, and samples of its own that no worker chooses."""

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
        self._refresh_buffers(step=0)

    def step(self, step: int) -> Step:
        lr = float(self.optimizer.param_groups[0]["lr"])
        params = self.params.detach()
        clock = _Clock()

        with clock("gradients"):
            errors = self._collect(params, step)

        def oracle() -> Oracle:
            return self.problem.at(params, lr, self._draw("score", step, getattr(self.rule, "batch_size", 4)))

        aggregate, skipped = None, None
        with clock("rule"):
            try:
                aggregate = self.rule(self.candidates, _Asked(lr, oracle, clock), self.state)
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
        return Step(lr, aggregate, skipped, errors, clock.seconds)

    def _collect(self, params: Tensor, step: int) -> dict[int, str]:
        """Puts the replies into the rows of the candidates, and NaN where it returns an error."""
        errors = dict.fromkeys(range(self.cluster.size), "sent no reply")
        self.candidates.fill_(torch.nan)
        for reply in self.cluster.gradients(params, self.problem.buffers, step):
            error = error_in(reply, step, params)
            if error is None:
                self.candidates[reply.worker] = reply.gradient.detach()  # type: ignore[union-attr]
                errors.pop(reply.worker, None)
            else:
                errors[reply.worker] = error
        return errors

    def _draw(self, role: str, step: int, size: int) -> Batch:
        return self.dataset.batch(draw(self.samples, size, generator(self.seed, role, step=step)))

    def _refresh_buffers(self, step: int) -> None:
        if self.problem.norms:
            self.problem.refresh(self.params.detach(), self._draw("statistics", step, STATISTICS_SAMPLES).inputs)


def error_in(reply: Reply, step: int, params: Tensor) -> str | None:
    """What is wrong with a reply, or None. Looks at the numbers last, and only at as many as there should be."""
    gradient = reply.gradient
    if reply.error is not None:
        return reply.error
    if not isinstance(gradient, Tensor):
        return f"sent {type(gradient).__name__}, expected a tensor"
    if reply.step != step:
        return f"sent the gradient of step {reply.step}, expected step {step}"
    if gradient.shape != params.shape:
        return f"sent numbers of shape {list(gradient.shape)}, expected {list(params.shape)}"
    if gradient.dtype != params.dtype or gradient.layout != params.layout:
        return f"sent {gradient.dtype}, {gradient.layout}, expected {params.dtype}, {params.layout}"
    if not all_finite(gradient):
        return "sent numbers that are not finite"
    return None


class _Asked:
    """The oracle as a rule sees it, its time on the clock.

    Samples are drawn when it is first asked, and not before: nobody could fit a gradient to them.
    """

    def __init__(self, lr: float, make: Callable[[], Oracle], clock: "_Clock") -> None:
        self.lr = lr
        self._make = make
        self._clock = clock

    def __call__(self, candidates: Tensor) -> Tensor:
        with self._clock("scores"):
            return self._oracle(candidates)

    def gradient(self) -> Tensor:
        with self._clock("scores"):
            return self._oracle.gradient()

    @cached_property
    def _oracle(self) -> Oracle:
        return self._make()


class _Clock:
    """Seconds by phase; a phase inside another is not counted twice."""

    def __init__(self) -> None:
        self.seconds = {"gradients": 0.0, "scores": 0.0, "rule": 0.0, "update": 0.0}
        self._inner = 0.0

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        outer, self._inner = self._inner, 0.0
        start = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            self.seconds[phase] += elapsed - self._inner
            self._inner = outer + elapsed
