"""What samples of the server's own say of its parameters, and of the candidates that would change them."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zeno.problem.dataset import Batch
from zeno.problem.threads import one_thread, side_by_side

if TYPE_CHECKING:
    from zeno.problem.problem import Problem

OWN_STATISTICS_FROM = 16
"""Scores on at least this many samples normalise with the samples' own statistics, as the gradients did.

The running ones belong to x, not to x - lr * u, and rank candidates worse; but fewer samples have statistics
too noisy to rank by. At 16 the samples' own were the better ones (docs/cifar10.md has the figures at 4, 32 and 128).
"""

WORTH_A_THREAD = 5e-4
"""Seconds that a forward has to take for others to run beside it: only torch runs at once, Python takes turns."""


@dataclass(frozen=True, eq=False)
class Oracle:
    """f_r, the mean loss on samples of the server's own: its gradient at x, and the descent that candidates bring.

    No dropout, and no buffer changes. With one torch thread each, so no answer depends on the number of cores.
    """

    problem: "Problem"
    params: Tensor  # x [d]
    lr: float | Tensor  # [d] where parameters have rates of their own
    batch: Batch
    own_statistics: bool | None = None  # normalise with the samples' own or the running ones; None: by their number

    def __call__(self, candidates: Tensor | Sequence[Tensor]) -> Tensor:
        """By how much each candidate u [m, d] lowers the loss: f_r(x) - f_r(x - lr * u) -> [m], float64.

        NaN for a candidate that is not finite.
        """
        return self.in_parts(candidates, 1)[:, 0]

    def in_parts(self, candidates: Tensor | Sequence[Tensor], parts: int) -> Tensor:
        """The descents on each of so many equal parts of the samples: [m, parts], float64.

        How far they differ shows how far their mean can be trusted. Samples that are left over are in no part.
        """
        losses = torch.empty(len(candidates), parts, dtype=torch.float64)
        start, seconds = self._start(parts)

        def loss_after(problem: "Problem", row: int) -> list[float]:
            u, flat = candidates[row].detach(), problem.flat
            if isinstance(self.lr, Tensor):
                torch.addcmul(self.params, u, self.lr, value=-1, out=flat)
            else:
                torch.add(self.params, u, alpha=-self.lr, out=flat)
            # x - lr * u is in the cache, and its sum tells: only if that is not finite is each number looked at.
            finite = bool(flat.sum().isfinite()) or bool(u.isfinite().all())
            return problem.losses_here(self.batch, parts) if finite else [float("nan")] * parts

        at_once = min(torch.get_num_threads(), len(candidates)) if seconds > WORTH_A_THREAD else 1
        places = self.problem.replicas(at_once, self.batch)
        with contextlib.ExitStack() as modes:
            for problem in places:
                modes.enter_context(self._scoring(problem))
            for row, loss in side_by_side(loss_after, places, range(len(candidates))):
                losses[row] = torch.tensor(loss, dtype=torch.float64)
        if places == [self.problem]:
            self.problem.load(self.params)
        return (start - losses).to(self.params.device)

    def gradient(self) -> Tensor:
        """The gradient of f_r at x [d]: to first order, u brings a descent of lr * <gradient, u>."""
        return self._gradient

    @cached_property
    def _gradient(self) -> Tensor:
        with one_thread(), self._scoring(self.problem):
            return self.problem.gradient_here(self.batch)

    def _start(self, parts: int) -> tuple[Tensor, float]:
        """f_r(x) on each part, and the seconds it took; worked out once."""
        if parts not in self._starts:
            with one_thread(), self._scoring(self.problem):
                began = time.perf_counter()
                losses = self.problem.losses_here(self.batch, parts)
                self._starts[parts] = torch.tensor(losses, dtype=torch.float64), time.perf_counter() - began
        return self._starts[parts]

    @cached_property
    def _starts(self) -> dict[int, tuple[Tensor, float]]:
        return {}

    @contextlib.contextmanager
    def _scoring(self, problem: "Problem") -> Iterator[None]:
        if problem is self.problem:
            problem.load(self.params)
        problem.model.eval()
        if self.own_statistics or (self.own_statistics is None and len(self.batch.targets) >= OWN_STATISTICS_FROM):
            for norm in problem.norms:
                norm.train()
        with problem.buffers_unchanged():
            yield
