"""What a step needs, whoever collects the candidates: the check of what came, the oracle that rules ask, the clock."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

from torch import Tensor

from zeno.problem import Oracle
from zeno.reply import Reply
from zeno.rules.memory import all_finite
from zeno.rules.standing import PARTS
from zeno.scoring import Scorer

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
    if not all_finite(gradient):
        return "sent numbers that are not finite"
    return None


Oracles = Callable[..., Oracle]
"""(number, samples) -> what that many samples, fresh for each number, say."""


class Asked:
    """The oracle as a rule sees it, its time on the clock; it knows the candidates that were scored on arrival.

    Samples are drawn when it is first asked, or when the first candidate is there, and not before: nobody could fit a
    gradient to them.
    """

    def __init__(self, lr: float, make: Oracles, clock: "Clock", own: Tensor, scorer: Scorer | None) -> None:
        self.lr = lr
        self._make = make
        self._clock = clock
        self._own = own  # the candidates [m, d] that arrive
        self._scorer = scorer
        self._begun = False
        self._drawn = 0

    def arrived(self, worker: int) -> None:
        """The candidate of this worker is in its row, and may be scored."""
        if self._scorer is not None:
            if not self._begun:
                self._scorer.begin(self._oracle, len(self._own))
                self._begun = True
            self._scorer.add(worker, self._own[worker])

    def __call__(self, candidates: Tensor) -> Tensor:
        with self._clock("scores"):
            if self._scorer is not None and self._begun and candidates.data_ptr() == self._own.data_ptr():
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
