"""What every cluster offers: one reply from each worker for each step."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

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


class Cluster(AbstractContextManager["Cluster"], Protocol):
    """Workers, wherever they run."""

    size: int

    def gradients(
        self,
        params: Tensor,  # [d]
        buffers: Mapping[str, Tensor],
        step: int,
        faults: Mapping[int, Fault] = NO_FAULTS,
    ) -> Iterator[Reply]:
        """One reply from each worker, in order of arrival.

        `faults` act on the batches of the workers they are listed for; only `Faulty` passes any.
        """
        ...
