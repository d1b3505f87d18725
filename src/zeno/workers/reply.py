"""What comes from a worker, wherever it runs, and what can be wrong with it."""

from dataclasses import dataclass

from torch import Tensor

KINDS = {  # of errors, by the words that they begin with
    "late": ("no answer", "sent no reply", "its answer was lost", "is starting", "is being restarted"),
    "died": ("died", "cannot be started"),
    "raised": ("raised",),
    "not finite": ("sent numbers that are not finite",),
    "malformed": ("sent",),
}


@dataclass(frozen=True, eq=False)
class Reply:
    """What came from one worker for one step, believed or not."""

    worker: int
    step: int
    gradient: Tensor | None  # [d]; None when there is none
    error: str | None = None  # why there is none
    late: bool = False  # to an earlier step, which went on without it


def kind_of(error: str) -> str:
    """What was wrong with a reply, in a word or two."""
    return next((kind for kind, words in KINDS.items() if error.startswith(words)), "other")
