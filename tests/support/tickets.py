"""An asynchronous cluster for tests: replies come in a given order, with whatever a test says."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

import zeno


class FakeTickets(zeno.Cluster):
    """Worker `order[i]` is the i-th to reply, with `sent(worker, step, params)`: a gradient, or a reply as it is.

    A worker of the order that has no ticket is skipped. `asked` has the tickets as (worker, step).
    """

    def __init__(self, size: int, order: Sequence[int], sent: Callable[[int, int, Tensor], Any]) -> None:
        self.size = size
        self.order = list(order)
        self.sent = sent
        self.asked: list[tuple[int, int]] = []
        self._tickets: dict[int, tuple[int, Tensor]] = {}

    def gradients(self, *asked: Any, **more: Any) -> Iterator[zeno.Reply]:
        raise NotImplementedError

    def idle(self, step: int) -> Collection[int]:
        return set(range(self.size)).difference(self._tickets)

    def ask(self, worker: int, params: Tensor, buffers: Mapping[str, Tensor], step: int) -> None:
        assert worker not in self._tickets
        self.asked.append((worker, step))
        self._tickets[worker] = step, params

    def next_reply(self) -> zeno.Reply | None:
        while self.order and self._tickets:
            worker = self.order.pop(0)
            if worker in self._tickets:
                step, params = self._tickets.pop(worker)
                sent = self.sent(worker, step, params)
                return sent if isinstance(sent, zeno.Reply) else zeno.Reply(worker, step, sent)
        return None
