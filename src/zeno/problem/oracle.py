"""What the server's samples say about its parameters, and about the candidates that would change them."""

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zeno.problem.dataset import Batch
from zeno.problem.errors import text_of
from zeno.problem.local_training import LocalTraining
from zeno.problem.nested import NestedBatch
from zeno.problem.threads import one_thread, side_by_side

if TYPE_CHECKING:
    from zeno.problem.problem import Problem

OWN_STATISTICS_FROM = 16
"""Scores on at least this many samples normalise with the batch statistics of the samples, as the gradients did.

Running statistics belong to x, not to x - lr * u, and rank candidates worse; but the batch statistics of fewer samples
are too noisy to rank by. At 16 the batch statistics were better (docs/cifar10.md has the figures at 4, 32 and 128).
"""

WORTH_A_THREAD = 5e-4
"""Seconds that a forward must take for others to run beside it: torch runs in parallel, Python does not."""


@dataclass(frozen=True, eq=False)
class LossOracle:
    """f_r, the mean loss on a batch of the server: its gradient at x, and the descent of candidates.

    No dropout, except in the first of the two `half_gradients`, and no buffer changes. Each evaluation uses one torch
    thread, so no result depends on the number of cores.
    """

    problem: "Problem"
    params: Tensor  # x [d]
    lr: float | Tensor  # [d] where parameters have different learning rates
    batch: Batch | NestedBatch
    own_statistics: bool | None = None  # normalise with batch or running statistics; None: by the number of samples
    seed: int = 0  # of the dropout

    def descents(self, candidates: Tensor | Sequence[Tensor]) -> Tensor:
        """By how much each candidate u [m, d] lowers the loss: f_r(x) - f_r(x - lr * u) -> [m], float64.

        NaN for a candidate that is not finite, or after which the loss raises. An exception at x itself is raised, and
        so is a ValueError if the loss there is not finite.
        """
        return self.trials(candidates)[0]

    def trials(self, candidates: Tensor | Sequence[Tensor]) -> tuple[Tensor, dict[int, str]]:
        """The descents [m], and what the loss raised, by row, where it raised after that candidate."""
        losses = torch.empty(len(candidates), dtype=torch.float64)
        raised: dict[int, str] = {}
        start, seconds = self._start  # an exception at x is not the fault of a candidate

        def loss_after(problem: "Problem", row: int) -> float:
            u = candidates[row].detach()
            # x - lr * u is in the cache: only if its sum is not finite is each number of u checked.
            finite = bool(self._step(problem, u).sum().isfinite()) or bool(u.isfinite().all())
            try:
                return problem.loss_here(self.batch) if finite else float("nan")
            except Exception as error:  # a model or a loss that checks its input
                raised[row] = text_of(error)
                return float("nan")

        at_once = min(torch.get_num_threads(), len(candidates)) if seconds > WORTH_A_THREAD else 1
        problems = self.problem.replicas(at_once, self.batch)
        with contextlib.ExitStack() as modes:
            for problem in problems:
                modes.enter_context(self._scoring(problem))
            for row, loss in side_by_side(loss_after, problems, range(len(candidates))):
                losses[row] = loss
        if problems == [self.problem]:
            self.problem.load(self.params)
        return (start - losses).to(self.params.device), raised

    def gradient(self, after: Tensor | None = None) -> Tensor:
        """The gradient of f_r at x, or at x - lr * after -> [d]. To first order, the descent is lr * <gradient, u>.

        Not finite if the loss after such a step is not, or raises. An exception at x itself is raised.
        """
        return self._gradient if after is None else self.gradient_after(after)[0]

    def gradient_after(self, u: Tensor) -> tuple[Tensor, str | None]:
        """The gradient at x - lr * u -> [d], and what the loss raised there; NaN if it raised."""
        with one_thread(), self._scoring(self.problem):
            self._step(self.problem, u.detach())
            try:
                return self.problem.gradient_here(self.batch), None
            except Exception as error:
                return torch.full_like(self.params, torch.nan), text_of(error)
            finally:
                self.problem.load(self.params)

    @cached_property
    def _gradient(self) -> Tensor:
        with one_thread(), self._scoring(self.problem):
            return self.problem.gradient_here(self.batch)

    def half_gradients(self) -> Tensor:
        """The gradients at x on the first and on the second half of the samples: [2, d].

        The first is with dropout, as those of the workers are: dropout changes the mean of a gradient, so without it,
        the server's own gradient would seem better than theirs. The second is there to judge, and without dropout it
        has less noise.
        """
        return self._half_gradients

    @cached_property
    def _half_gradients(self) -> Tensor:
        size = self.batch.size // 2
        if size < 1:
            raise ValueError(f"Gradients on two halves need two samples or more. Found {self.batch.size}.")
        return half_gradients(*(replace(self, batch=self.batch.cut(half)) for half in (slice(size), slice(size, None))))

    def _step(self, problem: "Problem", u: Tensor) -> Tensor:
        """Loads x - lr * u into the problem, and returns it [d]."""
        if isinstance(self.lr, Tensor):
            return torch.addcmul(self.params, u, self.lr, value=-1, out=problem.flat)
        return torch.add(self.params, u, alpha=-self.lr, out=problem.flat)

    @cached_property
    def _start(self) -> tuple[float, float]:
        """f_r(x), and the seconds it took. Raises if f_r(x) is not finite: no candidate is to blame for that."""
        with one_thread(), self._scoring(self.problem):
            began = time.perf_counter()
            loss, seconds = self.problem.loss_here(self.batch), time.perf_counter() - began
        if not math.isfinite(loss):
            raise ValueError(
                f"Scores need a finite loss on the server's samples. Found {loss} at the current parameters. Go back "
                "to a checkpoint, or check the samples and the loss."
            )
        return loss, seconds

    @contextlib.contextmanager
    def _scoring(self, problem: "Problem") -> Iterator[None]:
        if problem is self.problem:
            problem.load(self.params)
        problem.model.eval()
        for norm in problem.norms:
            norm.train(self._own_statistics)
        with problem.buffers_unchanged():
            yield

    @contextlib.contextmanager
    def _training(self, problem: "Problem") -> Iterator[None]:
        with self._scoring(problem), problem.draws(self.seed):
            problem.model.train()
            for norm in problem.norms:
                norm.train(self._own_statistics)
            yield

    @property
    def _own_statistics(self) -> bool:
        return self._at_once >= OWN_STATISTICS_FROM if self.own_statistics is None else self.own_statistics

    @property
    def _at_once(self) -> int:
        """The fewest samples in one forward pass."""
        if isinstance(self.batch, NestedBatch):
            return min(piece.size for piece in self.batch.pieces)
        return self.batch.size


def half_gradients(own: LossOracle, judge: LossOracle, *, local: LocalTraining | None = None) -> Tensor:
    """The gradients of two oracles of one problem, the first with dropout -> [2, d]; in parallel if they take long.

    With local training, they are its displacements instead.
    """
    original = own.problem

    def gradient(problem: "Problem", oracle: LossOracle) -> Tensor:
        began = time.perf_counter()
        once = oracle if local is None else replace(oracle, batch=local.parts(oracle.batch)[0])
        with once._training(problem) if oracle is own else once._scoring(problem):
            problem.load(oracle.params)
            batch = oracle.batch
            found = problem.gradient_here(batch) if local is None else local.displacement(problem, batch)
        original.gradient_seconds = time.perf_counter() - began
        return found

    at_once = min(torch.get_num_threads(), 2) if original.gradient_seconds > WORTH_A_THREAD else 1
    found = dict(side_by_side(gradient, original.replicas(at_once, own.batch), (own, judge)))
    return torch.stack([found[own], found[judge]])
