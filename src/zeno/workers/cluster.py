"""What every cluster offers: one reply from each worker for each step."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from zeno.workers.reply import Reply

NOBODY: Collection[int] = frozenset()


class Status(NamedTuple):
    """How many workers answer, how many missed the last deadline, and how many are not there at all."""

    alive: int
    late: int
    lost: int


class Cluster(AbstractContextManager["Cluster"], Protocol):
    """Workers, wherever they run."""

    size: int
    remote: bool = False  # whether the workers leave this process's cores free, to score replies while others compute

    @property
    def status(self) -> Status:
        return Status(self.size, 0, 0)

    def gradients(
        self,
        params: Tensor,  # [d]
        buffers: Mapping[str, Tensor],
        step: int,
        need: int = 1,
        skip: Collection[int] = NOBODY,
    ) -> Iterator[Reply]:
        """One reply from each worker, in order of arrival; late ones to earlier steps may be among them.

        With fewer than `need` replies the step will come to nothing: worth waiting for workers that are on their way back. Workers in
        `skip` are not asked: they compute nothing, nothing comes from them, and nobody counts them as late or lost for
        it. A later call may ask them, for the same step too.
        """
        ...

    def state_to_save(self) -> Any:
        """What a later cluster needs to go on as this one would, between two steps; None where that is nothing."""
        return None

    def load_state(self, state: Any) -> None:
        """Goes on from what `state_to_save` returned."""
        return
