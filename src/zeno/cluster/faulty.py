"""A cluster some of whose workers go wrong."""

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from zeno.cluster.cluster import NO_FAULTS, Cluster, Status
from zeno.data import generator
from zeno.faults import Fault, Scene
from zeno.reply import Reply


class Faulty(Cluster):
    """Wraps a cluster and lets the faults `who_has_what(step)`, by worker, act on it; nobody outside can tell.

    Workers with equal faults act as one. Where faults differ, each knows what those before it made their workers send.
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
        faults: Mapping[int, Fault] = NO_FAULTS,
        need: int = 1,
    ) -> Iterator[Reply]:
        own_faults = self.who_has_what(step)
        arrived = list(self.cluster.gradients(params, buffers, step, {**faults, **own_faults}, need))
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
