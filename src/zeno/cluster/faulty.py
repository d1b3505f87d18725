"""A cluster some of whose workers go wrong."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType

import torch
from torch import Tensor

from zeno.cluster.cluster import NO_FAULTS, Cluster, Reply, Status
from zeno.data import generator
from zeno.faults import Fault


class Faulty(Cluster):
    """Wraps a cluster and lets `fault` act on the workers `who(step)`; nobody outside can tell."""

    def __init__(self, cluster: Cluster, fault: Fault, who: Callable[[int], Sequence[int]], seed: int) -> None:
        self.cluster = cluster
        self.fault = fault
        self.who = who
        self.seed = seed
        self.size = cluster.size

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
        who = self.who(step)
        on_batches = {**faults, **dict.fromkeys(who, self.fault)}
        arrived = sorted(self.cluster.gradients(params, buffers, step, on_batches, need), key=lambda r: r.worker)
        yield from (reply for reply in arrived if reply.late)
        replies = {reply.worker: reply for reply in arrived if not reply.late}
        gradients = {
            i: r.gradient for i, r in replies.items() if r.gradient is not None and r.gradient.shape == params.shape
        }
        own = {i: gradient for i, gradient in gradients.items() if i in who}
        correct = [gradient for i, gradient in gradients.items() if i not in who]
        if own:
            sent = self.fault.on_gradients(
                torch.stack(list(own.values())),
                torch.stack(correct) if correct else params.new_empty(0, len(params)),
                generator(self.seed, "fault on gradients", step=step),
            )
            for i, gradient in zip(own, sent, strict=True):
                replies[i] = replace(replies[i], gradient=gradient)
        yield from replies.values()

    def __enter__(self) -> "Faulty":
        self.cluster.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cluster.__exit__(kind, error, trace)


def fixed(faulty: int) -> Callable[[int], list[int]]:
    """The same workers at every step: the first ones, which also win every tie."""
    return lambda step: list(range(faulty))


def redrawn(faulty: int, workers: int, seed: int) -> Callable[[int], list[int]]:
    """Other workers at every step: the paper's changing indices."""
    return lambda step: sorted(
        generator(seed, "faulty workers", step=step).choice(workers, size=faulty, replace=False).tolist()
    )
