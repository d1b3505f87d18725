"""What every cluster offers: one reply from each worker for each step."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from zeno.faults import Fault

NO_FAULTS: Mapping[int, Fault] = {}


@dataclass(frozen=True, eq=False)
class Reply:
    """What came from one worker for one step, believed or not."""

    worker: int
    step: int
    gradient: Tensor | None  # [d]; None when there is none
    error: str | None = None  # why there is none
    late: bool = False  # to an earlier step, which went on without it


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
        faults: Mapping[int, Fault] = NO_FAULTS,
        need: int = 1,
    ) -> Iterator[Reply]:
        """One reply from each worker, in order of arrival; late ones to earlier steps may be among them.

        `faults` act on the batches of the workers they are listed for; only `Faulty` passes any. With fewer than
        `need` replies the step will come to nothing: worth waiting for workers that are on their way back.
        """
        ...
