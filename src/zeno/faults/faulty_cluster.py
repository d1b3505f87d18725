"""A cluster some of whose workers go wrong."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from zeno.faults.fault import Fault
from zeno.faults.scene import Scene
from zeno.problem.dataset import Batch, generator
from zeno.workers.cluster import NOBODY, Cluster, Status
from zeno.workers.reply import Reply
from zeno.workers.worker import Worker


@dataclass(frozen=True)
class Poison:
    """The data faults of one worker, as a transform of its batches."""

    who_has_what: Callable[[int], Mapping[int, Fault]]
    worker: int
    classes: int | None
    seed: int

    def __call__(self, batch: Batch, step: int) -> Batch:
        fault = self.who_has_what(step).get(self.worker)
        if fault is None:
            return batch
        return fault.on_batch(batch, self.classes, generator(self.seed, "fault on batch", self.worker, step))


def poisoned(workers: Sequence[Worker], who_has_what: Callable[[int], Mapping[int, Fault]]) -> list[Worker]:
    """The same workers, with the data faults of `who_has_what(step)` in their batches."""
    return [replace(w, transform=Poison(who_has_what, w.index, w.dataset.classes, w.seed)) for w in workers]


class Faulty(Cluster):
    """Wraps a cluster and lets the faults `who_has_what(step)`, by worker, act on it; nobody outside can tell.

    Workers with equal faults act as one. Where faults differ, each knows what those before it made their workers send.
    Gradients that no fault needs are not computed: what comes out is the same, only sooner.
    """

    def __init__(self, cluster: Cluster, who_has_what: Callable[[int], Mapping[int, Fault]], seed: int) -> None:
        self.cluster = cluster
        self.who_has_what = who_has_what
        self.seed = seed
        self.size = cluster.size
        self.trial: Callable[[Tensor, int], Tensor | None] | None = None  # what the rule makes of candidates, at a step
        self._memory: dict[str, dict[str, Any]] = {}  # what each fault wants to remember

    @property
    def status(self) -> Status:
        return self.cluster.status

    def gradients(
        self,
        params: Tensor,
        buffers: Mapping[str, Tensor],
        step: int,
        need: int = 1,
        skip: Collection[int] = NOBODY,
    ) -> Iterator[Reply]:
        own_faults = {i: fault for i, fault in self.who_has_what(step).items() if i not in skip}
        arrived = self._ask(params, buffers, step, own_faults, need, skip)
        replies = {reply.worker: reply for reply in arrived if not reply.late}
        sent = [reply for reply in arrived if reply.late or reply.worker not in own_faults]
        known = _gradients([replies[i] for i in sorted(replies)], params, step)
        correct = _stacked([gradient for i, gradient in known.items() if i not in own_faults], params)
        for number, (name, workers) in enumerate(_by_fault(own_faults).items()):
            own = {i: known.pop(i) for i in workers if i in known}
            scene = Scene(
                step=step,
                workers=list(own),
                own=_stacked(list(own.values()), params),
                correct=correct,
                rng=generator(self.seed, "fault on gradients", number, step),
                size=self.size,
                others=dict(known),
                believe=self._believe(step),
                memory=self._memory.setdefault(name, {}),
            )
            fault = own_faults[workers[0]]
            wrong = list(fault.on_replies([replies[i] for i in workers if i in replies], scene))
            known |= _gradients(wrong, params, step)
            sent += wrong
        yield from sorted(sent, key=lambda reply: (not reply.late, reply.worker))

    def _ask(
        self,
        params: Tensor,
        buffers: Mapping[str, Tensor],
        step: int,
        own_faults: Mapping[int, Fault],
        need: int,
        skip: Collection[int],
    ) -> list[Reply]:
        """What comes from the workers whose gradients matter; from the other faulty ones NaN, unasked.

        Where what a fault needs does not come, it may need another in its place: then the others are asked as well, all
        at once, so that those that hang are waited for together.
        """
        # Of several faults each may look at what the workers of the others computed, so all is needed, as by Fault().
        one = len(_by_fault(own_faults)) == 1 and not isinstance(self.cluster, Faulty)
        fault = next(iter(own_faults.values())) if one else Fault()
        faulty, everyone = sorted(own_faults), set(range(self.size))
        correct = [i for i in sorted(everyone) if i not in own_faults and i not in skip]
        arrived: list[Reply] = []
        unasked, came = set(faulty), set[int]()
        to_ask = {*correct, *fault.needs(faulty, correct)}
        while to_ask:
            unasked = unasked - to_ask
            still = need - len(unasked) - len(came)
            arrived += self.cluster.gradients(params, buffers, step, still, everyone - to_ask)
            came = set(_gradients(arrived, params, step))
            faulty, correct = ([i for i in some if i in came | unasked] for some in (faulty, correct))
            to_ask = set() if unasked.isdisjoint(fault.needs(faulty, correct)) else unasked
        nothing = torch.full_like(params, torch.nan)  # which shows, should a fault need more than it says
        return arrived + [Reply(i, step, nothing) for i in sorted(unasked)]

    def _believe(self, step: int) -> Callable[[Tensor], Tensor | None] | None:
        trial = self.trial
        return None if trial is None else lambda candidates: trial(candidates, step)

    def state_to_save(self) -> dict[str, Any]:
        return {"faults": self._memory, "cluster": self.cluster.state_to_save()}

    def load_state(self, state: Any) -> None:
        self._memory = dict(state["faults"])
        self.cluster.load_state(state["cluster"])

    def __enter__(self) -> "Faulty":
        self.cluster.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cluster.__exit__(kind, error, trace)


def _by_fault(faults: Mapping[int, Fault]) -> dict[str, list[int]]:
    """The workers of each fault, in order; faults by their text, which is also their name in a checkpoint."""
    found: dict[str, list[int]] = {}
    for worker, fault in faults.items():
        found.setdefault(repr(fault), []).append(worker)
    return {name: sorted(workers) for name, workers in found.items()}


def _gradients(replies: list[Reply], params: Tensor, step: int) -> dict[int, Tensor]:
    """By worker, what is of this step and numbers that a fault can work with: as many as there are parameters."""
    found: list[tuple[int, Any]] = [(reply.worker, reply.gradient) for reply in replies if reply.step == step]
    like = (params.shape, params.dtype)
    return {i: g for i, g in found if isinstance(g, Tensor) and (g.shape, g.dtype) == like}


def _stacked(gradients: list[Tensor], params: Tensor) -> Tensor:  # [k, d]
    return torch.stack(gradients) if gradients else params.new_empty(0, len(params))
