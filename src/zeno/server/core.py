"""What a step needs, whoever collects the candidates: the check of what came, the oracle that rules ask, the clock."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from torch import Tensor

from zeno.problem import Oracle
from zeno.records.folder import Record, finite
from zeno.rules import Aggregate
from zeno.rules.linalg.passes import all_finite
from zeno.rules.standing import PARTS
from zeno.server.scorers import Scorer
from zeno.workers.reply import Reply

NOT_FINITE = "sent numbers that are not finite"
STATISTICS_SAMPLES = 256  # of the server's own, for the running statistics of each step


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
    return None if all_finite(gradient) else NOT_FINITE


def record_of(
    step: int,
    lr: float,
    aggregate: Aggregate | None,  # None: the step was skipped
    skipped: str | None,
    errors: dict[int, str],
    quarantined: Sequence[int] = (),
    **rest: Any,
) -> Record:
    """What is written down of a step; `rest` are other fields of a record."""
    scores = None if aggregate is None or aggregate.scores is None else finite(aggregate.scores.tolist())
    standing = None if aggregate is None else aggregate.standing
    without = {*errors, *quarantined}
    judged = [] if aggregate is None or aggregate.judged is None else aggregate.judged.tolist()
    return Record(
        step=step,
        lr=lr,
        kept=None if aggregate is None else aggregate.kept.tolist(),
        scores=scores,
        standing=None if standing is None else standing.tolist(),
        samples=None if aggregate is None else aggregate.samples,
        unjudged=[worker for worker, looked in enumerate(judged) if not looked and worker not in without],
        quarantined=list(quarantined),
        errors=errors,
        skipped=skipped,
        **rest,
    )


def samples_for(rule: object) -> int:
    """Of the server's own, that a rule works with; 4, as in the paper, where it does not say."""
    return int(getattr(rule, "samples", getattr(rule, "batch_size", 4)))


Oracles = Callable[..., Oracle]
"""(number, samples) -> what that many samples, fresh for each number, say."""


class Asked:
    """The oracle as a rule sees it, its time on the clock; it knows the candidates that were scored on arrival.

    Samples are drawn when it is first asked, or when the first candidate is there, and not before: nobody could fit a
    gradient to them.
    """

    def __init__(
        self,
        lr: float | Tensor,
        make: Oracles,
        clock: "Clock",
        own: Tensor | None = None,  # the candidates [m, d] that are scored as they arrive,
        scorer: Scorer | None = None,  # and by whom
    ) -> None:
        self.lr = lr
        self._make = make
        self._clock = clock
        self._own = own
        self._scorer = scorer if own is not None else None
        self._begun = False
        self._drawn = 0

    def arrived(self, worker: int) -> None:
        """The candidate of this worker is in its row, and may be scored."""
        if self._scorer is not None and self._own is not None:
            if not self._begun:
                self._scorer.begin(self._oracle, len(self._own))
                self._begun = True
            self._scorer.add(worker, self._own[worker])

    def __call__(self, candidates: Tensor) -> Tensor:
        with self._clock("scores"):
            own = self._own if self._begun else None
            if own is not None and self._scorer is not None and candidates.data_ptr() == own.data_ptr():
                return self._scorer.descents().to(candidates.device)
            return self._oracle(candidates)

    def parts(self, candidates: Sequence[Tensor], samples: int) -> Tensor:
        """The descents [m, p] on that many samples that nothing was scored on before, in equal parts."""
        self._drawn += 1
        with self._clock("scores"):
            return self._make(self._drawn, samples).in_parts(candidates, min(PARTS, samples))

    def gradient(self) -> Tensor:
        with self._clock("scores"):
            return self._oracle.gradient()

    @cached_property
    def _oracle(self) -> Oracle:
        return self._make()


class Clock:
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
