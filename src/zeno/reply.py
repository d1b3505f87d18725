"""What comes from a worker, wherever it runs."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Reply:
    """What came from one worker for one step, believed or not."""

    worker: int
    step: int
    gradient: Tensor | None  # [d]; None when there is none
    error: str | None = None  # why there is none
    late: bool = False  # to an earlier step, which went on without it
