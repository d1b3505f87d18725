"""How faults reach workers: through the batches of the workers, and through the replies of the cluster."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from zeno.faults.fault import Fault, Scene
from zeno.problem.dataset import Batch, generator
from zeno.workers.checks import gradient_of
from zeno.workers.cluster import NOBODY, Cluster, ClusterWrapper
from zeno.workers.reply import Reply
from zeno.workers.worker import Worker

Faults: TypeAlias = Mapping[int, Fault]  # by worker
FaultsByStep: TypeAlias = Callable[[int], Faults]  # such as a `Schedule`


def poisoned(workers: Sequence[Worker], schedule: FaultsByStep) -> list[Worker]:
    """The same workers, with the data faults of `schedule(step)` in their batches."""
    return [replace(worker, transform=partial(_poison, schedule, worker)) for worker in workers]


def _poison(schedule: FaultsByStep, worker: Worker, batch: Batch, step: int) -> Batch:
    fault = schedule(step).get(worker.index)
    rng = generator(worker.seed, "fault on batch", worker.index, step)
    return batch if fault is None else fault.on_batch(batch, worker.dataset.classes, rng)


class Faulty(ClusterWrapper):
    """Wraps a cluster and applies the faults `schedule(step)`, by worker, to its replies.

    Workers with equal faults collude. Where faults differ, each sees what those before it made their workers send.
    Gradients that no fault needs are not computed; the replies are the same. Data faults act in `poisoned` workers.
    """

    def __init__(self, cluster: Cluster, schedule: FaultsByStep, seed: int) -> None:
        super().__init__(cluster)
        self.schedule = schedule
        self.seed = seed
        self.trial: Callable[[Tensor, int], Tensor | None] | None = None  # the rule: (candidates, step) -> update
        self._memory: dict[str, dict[str, Any]] = {}  # by fault
        self._tickets: dict[
            int, tuple[int, Tensor]
        ] = {}  # the step and the parameters that a worker was last asked for
        self._latest: dict[int, Tensor] = {}  # [d] by worker: what it computed last, in an asynchronous run

    def gradients(
        self, params: Tensor, buffers: Mapping[str, Tensor], step: int, need: int = 1, skip: Collection[int] = NOBODY
    ) -> Iterator[Reply]:
        faults = {i: fault for i, fault in self.schedule(step).items() if i not in skip}
        arrived = self._ask(params, buffers, step, faults, need, skip)
        replies = {reply.worker: reply for reply in arrived if not reply.late}
        sent = [reply for reply in arrived if reply.late or reply.worker not in faults]
        known = _gradients([replies[i] for i in sorted(replies)], params, step)
        correct = _stacked([gradient for i, gradient in known.items() if i not in faults], params)
        trial = self.trial
        for number, (name, workers) in enumerate(_by_fault(faults).items()):
            own = {i: known.pop(i) for i in workers if i in known}
            scene = Scene(
                step=step,
                workers=list(own),
                own=_stacked(list(own.values()), params),
                correct=correct,
                rng=generator(self.seed, "fault on gradients", number, step),
                size=self.size,
                others=dict(known),
                aggregate=None if trial is None else lambda candidates: trial(candidates, step),
                memory=self._memory.setdefault(name, {}),
            )
            wrong = list(faults[workers[0]].on_replies([replies[i] for i in workers if i in replies], scene))
            known |= _gradients(wrong, params, step)
            sent += wrong
        yield from sorted(sent, key=lambda reply: (not reply.late, reply.worker))

    def ask(self, worker: int, params: Tensor, buffers: Mapping[str, Tensor], step: int) -> None:
        self._tickets[worker] = step, params
        super().ask(worker, params, buffers, step)

    def next_reply(self) -> Reply | None:
        """The faults of an arrival are those of the step at which its worker was asked."""
        reply = self.cluster.next_reply()
        if reply is None or reply.lost:
            return reply
        step, params = self._tickets[reply.worker]
        self._latest |= _gradients([reply], params, step)
        faults = self.schedule(step)
        fault = faults.get(reply.worker)
        if fault is None:
            return reply
        names = _by_fault(faults)
        own = {i: self._latest[i] for i in names[repr(fault)] if i in self._latest}
        correct = [gradient for i, gradient in sorted(self._latest.items()) if i not in faults]
        trial = self.trial
        scene = Scene(
            step=step,
            workers=list(own),
            own=_stacked(list(own.values()), params),
            correct=_stacked(correct, params),
            rng=generator(self.seed, "fault on gradients", list(names).index(repr(fault)), step),
            size=self.size,
            others={i: gradient for i, gradient in self._latest.items() if i not in own},
            aggregate=None if trial is None else lambda candidates: trial(candidates, step),
            memory=self._memory.setdefault(repr(fault), {}),
        )
        return fault.on_arrival(reply, scene)

    def _ask(
        self, params: Tensor, buffers: Mapping[str, Tensor], step: int, faults: Faults, need: int, skip: Collection[int]
    ) -> list[Reply]:
        """The replies of the workers whose gradients matter; for the other faulty workers NaN, without asking them.

        If a gradient that a fault needs does not arrive, the fault may need another one instead. Then all remaining
        workers are asked at once, so that the time to wait for those that hang is spent once.
        """
        # With several faults each may see the gradients of the others' workers, so all are needed, as by Fault().
        one = len(_by_fault(faults)) == 1 and not isinstance(self.cluster, Faulty)
        fault = next(iter(faults.values())) if one else Fault()
        faulty, everyone = sorted(faults), set(range(self.size))
        correct = [i for i in sorted(everyone) if i not in faults and i not in skip]
        arrived: list[Reply] = []
        unasked, found = set(faulty), set[int]()
        to_ask = {*correct, *fault.needs(faulty, correct)}
        while to_ask:
            unasked = unasked - to_ask
            still = need - len(unasked) - len(found)
            arrived += self.cluster.gradients(params, buffers, step, still, everyone - to_ask)
            found = set(_gradients(arrived, params, step))
            faulty, correct = ([i for i in some if i in found | unasked] for some in (faulty, correct))
            to_ask = set() if unasked.isdisjoint(fault.needs(faulty, correct)) else unasked
        nothing = torch.full_like(params, torch.nan)  # exposes a fault that uses gradients which it does not need
        return arrived + [Reply(i, step, nothing) for i in sorted(unasked)]

    def state_to_save(self) -> dict[str, Any]:
        return {"faults": self._memory, "latest": self._latest, **super().state_to_save()}

    def load_state(self, state: Any) -> None:
        self._memory = dict(state["faults"])
        self._latest = dict(state.get("latest", {}))  # older checkpoints are of synchronous runs
        super().load_state(state)


def _by_fault(faults: Faults) -> dict[str, list[int]]:
    """The workers of each fault, in order. Faults are named by their repr, also in checkpoints."""
    found: dict[str, list[int]] = {}
    for worker, fault in faults.items():
        found.setdefault(repr(fault), []).append(worker)
    return {name: sorted(workers) for name, workers in found.items()}


def _gradients(replies: Sequence[Reply], params: Tensor, step: int) -> dict[int, Tensor]:
    """The gradients of this step by worker, finite or not."""
    found = {reply.worker: gradient_of(reply, step, params) for reply in replies}
    return {worker: gradient for worker, gradient in found.items() if isinstance(gradient, Tensor)}


def _stacked(gradients: list[Tensor], params: Tensor) -> Tensor:  # [k, d]
    return torch.stack(gradients) if gradients else params.new_empty(0, len(params))
