"""Workers in this process."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from zeno.problem.dataset import Batch
from zeno.problem.problem import Problem
from zeno.problem.threads import one_thread, side_by_side
from zeno.workers.cluster import NOBODY, Cluster
from zeno.workers.reply import Reply
from zeno.workers.worker import Worker

Job = tuple[Worker, Batch]

QUICK = 2e-3
"""Seconds: a quicker gradient is mostly Python overhead, which vectorizing over workers saves and threads do not."""


class LocalCluster(Cluster):
    """All workers in this process, in parallel on its cores. An exception in a worker ends the run.

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
        self._can_vectorize = all(worker.local_steps == 1 for worker in workers)  # all at the same parameters
        self._seconds = float("inf")  # of the quickest gradient so far
        self._same_bits: dict[object, bool] = {}  # whether vectorizing keeps the bits, by number and shape of batches

    def gradients(
        self, params: Tensor, buffers: Mapping[str, Tensor], step: int, need: int = 1, skip: Collection[int] = NOBODY
    ) -> Iterator[Reply]:
        asked = [worker for worker in self.workers if worker.index not in skip]
        if not asked:
            return
        buffers = {name: buffer.clone() for name, buffer in buffers.items()}  # they may be the problem's own
        jobs = ((worker, worker.batch(step)) for worker in asked)

        def gradient(problem: Problem, job: Job) -> Tensor:
            worker, batch = job
            began = time.perf_counter()
            found = replace(worker, problem=problem).gradient_of(batch, params, buffers, step)
            self._seconds = min(self._seconds, (time.perf_counter() - began) / worker.local_steps)
            return found

        quick = self._seconds < QUICK
        if quick and self._can_vectorize:
            done: Iterable[tuple[Job, Tensor]] = self._vectorized(params, list(jobs), gradient)
        else:
            few = self.workers[0].dataset.batch(self.workers[0].shard[:4])
            number = 1 if quick else min(torch.get_num_threads(), len(asked))
            done = side_by_side(gradient, self.problem.replicas(number, few), jobs)
        for (worker, _), found in done:
            yield Reply(worker.index, step, found)

    def _vectorized(
        self, params: Tensor, jobs: Sequence[Job], gradient: Callable[[Problem, Job], Tensor]
    ) -> Iterable[tuple[Job, Tensor]]:
        """Vectorized where that gave the same bits as one by one before, for as many batches of the same shapes."""
        shapes = frozenset((w.precision, b.inputs.shape, b.inputs.dtype, b.targets.shape) for w, b in jobs)
        key = len(jobs), shapes  # the last bits of a batched matrix product may depend on the number of matrices
        same = self._same_bits.get(key)
        together = None if same is False else self._at_once(params, jobs)
        if same and together is not None:
            return zip(jobs, together, strict=True)
        alone = list(side_by_side(gradient, [self.problem], jobs))
        self._same_bits[key] = together is not None and torch.equal(together, torch.stack([one for _, one in alone]))
        return alone

    def _at_once(self, params: Tensor, jobs: Sequence[Job]) -> Tensor | None:
        """All gradients [m, d], vectorized; None where torch.func cannot."""
        try:
            inputs = torch.stack([batch.inputs for _, batch in jobs])
            targets = torch.stack([batch.targets for _, batch in jobs])
            with one_thread():
                return self.problem.gradients(params, inputs, targets, self.workers[0].precision)
        except Exception:  # unequal shapes, random draws, buffers, branches on values: each worker alone manages these
            return None
