"""A cluster for tests: its workers send whatever a test says."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import zeno
from zeno.workers.cluster import NOBODY, Status
from zeno.workers.reply import ErrorKind, ReplyError

DIED, RAISED = ReplyError(ErrorKind.DIED, "died"), ReplyError(ErrorKind.RAISED, "raised")
CAME_LATE = ReplyError(ErrorKind.LATE, "came late")
M, D = 7, 211
ROWS = torch.randn(M, D, generator=torch.Generator().manual_seed(0))


class FakeCluster(zeno.Cluster):
    """Sends entry i of `sent`, or `sent(i, step)`, from worker i, the last worker first.

    An entry is a gradient, or any other object to send in place of one; a `zeno.Reply`, sent as it is; or None, for a
    worker that does not reply. `extra` replies follow at every step. `asked` has the workers of each call, `events` the
    times that the cluster was entered and left.
    """

    status = Status(1, 1, 1)

    def __init__(
        self,
        sent: Sequence[Any] | Callable[[int, int], Any],
        size: int | None = None,
        extra: Sequence[zeno.Reply] = (),
        remote: bool = False,
    ) -> None:
        self.sent = sent
        self.size = len(sent) if size is None and not callable(sent) else size or 0
        self.extra = extra
        self.remote = remote
        self.asked: list[list[int]] = []
        self.events: list[str] = []

    def gradients(
        self, params: Tensor, buffers: Mapping[str, Tensor], step: int, need: int = 1, skip: Collection[int] = NOBODY
    ) -> Iterator[zeno.Reply]:
        self.asked.append([worker for worker in range(self.size) if worker not in skip])
        for worker in reversed(self.asked[-1]):
            sent = self.sent(worker, step) if callable(self.sent) else self.sent[worker]
            if isinstance(sent, zeno.Reply):
                yield sent
            elif sent is not None:
                yield zeno.Reply(worker, step, sent)
        yield from self.extra

    def __enter__(self) -> "FakeCluster":
        self.events.append("entered")
        return self

    def __exit__(self, *error: object) -> None:
        self.events.append("left")


def normal(*dead: int, **changed: Any) -> FakeCluster:
    """Workers that send `ROWS`, fixed normal numbers, except those that are dead."""

    def sent(worker: int, step: int) -> zeno.Reply | Tensor:
        return zeno.Reply(worker, step, None, DIED) if worker in dead else ROWS[worker]

    return FakeCluster(sent, size=M, **changed)
