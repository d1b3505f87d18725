"""Workers in this process."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType

import torch
from torch import Tensor

from zeno.problem import Problem
from zeno.problem.dataset import Batch
from zeno.problem.threads import one_thread, side_by_side
from zeno.workers.cluster import NOBODY, Cluster
from zeno.workers.reply import Reply
from zeno.workers.worker import Worker

Job = tuple[Worker, Batch]

QUICK = 2e-3
"""Seconds: a gradient that takes less is mostly Python, which threads do not speed up; all gradients at once do."""


class LocalCluster(Cluster):
    """All workers in this process, side by side on its cores. An exception in one is a bug of yours, and ends the run.

    Each gradient equals, to the last bit, the one that its worker computes alone with one torch thread: it depends
    neither on the number of cores nor on the other workers.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        problems = {id(worker.problem) for worker in workers}
        if len(problems) != 1:
            raise ValueError(f"A LocalCluster needs workers that share one problem. Found {len(problems)} problems.")
        self.workers = workers
        self.size = len(workers)
        self.problem = workers[0].problem
        self._one_each = all(worker.local_steps == 1 for worker in workers)  # gradient, at parameters that all share
        self._seconds = float("inf")  # that the quickest gradient took so far
        self._same_at_once: dict[object, bool] = {}  # by how many batches there are, and what they look like

    def gradients(
        self,
        params: Tensor,
        buffers: Mapping[str, Tensor],
        step: int,
        need: int = 1,
        skip: Collection[int] = NOBODY,
    ) -> Iterator[Reply]:
        buffers = {name: buffer.clone() for name, buffer in buffers.items()}  # they may be the problem's own
        asked = [worker for worker in self.workers if worker.index not in skip]
        if not asked:
            return
        jobs: Iterable[Job] = ((w, w.batch(step)) for w in asked)

        def gradient(problem: Problem, job: Job) -> Tensor:
            worker, batch = job
            began = time.perf_counter()
            found = replace(worker, problem=problem).gradient_of(batch, params, buffers, step)
            self._seconds = min(self._seconds, (time.perf_counter() - began) / worker.local_steps)
            return found

        quick = self._seconds < QUICK
        if quick and self._one_each:
            jobs = list(jobs)
            found: Iterable[tuple[Worker, Tensor]] = zip(asked, self._quickly(params, jobs, gradient), strict=True)
        else:
            few = self.workers[0].dataset.batch(self.workers[0].shard[:4])
            number = 1 if quick else min(torch.get_num_threads(), len(asked))
            places = self.problem.replicas(number, few)
            found = ((worker, one) for (worker, _), one in side_by_side(gradient, places, jobs))
        for worker, one in found:
            yield Reply(worker.index, step, one)

    def _quickly(
        self, params: Tensor, jobs: Sequence[Job], gradient: Callable[[Problem, Job], Tensor]
    ) -> Iterable[Tensor]:
        """All at once where that was seen to give the same bits as one after the other, for as many that look so."""
        kinds = frozenset((w.precision, b.inputs.shape, b.inputs.dtype, b.targets.shape) for w, b in jobs)
        looks = len(jobs), kinds  # the last bits of a product of matrices may depend on their number
        same = self._same_at_once.get(looks)
        together = None if same is False else self._at_once(params, jobs)
        if same and together is not None:
            return together
        alone = [one for _, one in side_by_side(gradient, [self.problem], jobs)]
        self._same_at_once[looks] = together is not None and torch.equal(together, torch.stack(alone))
        return alone

    def _at_once(self, params: Tensor, jobs: Sequence[Job]) -> Tensor | None:
        """All gradients [m, d] in one go, or None where torch.func cannot do that."""
        try:
            inputs = torch.stack([batch.inputs for _, batch in jobs])
            targets = torch.stack([batch.targets for _, batch in jobs])
            with one_thread():
                return self.problem.gradients(params, inputs, targets, self.workers[0].precision)
        except Exception:  # of unequal shapes, random draws, buffers, branches on values: a worker alone does better
            return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to shut down."""
