"""A worker's reply, and what can be wrong with it."""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # records are read without torch
    from torch import Tensor


class ErrorKind(str, Enum):
    """What was wrong with a reply."""

    LATE = "late"  # no reply in time
    DIED = "died"  # the worker's process is gone
    RAISED = "raised"  # the worker raised an exception
    NOT_FINITE = "not finite"  # a gradient with NaN or Inf
    LOSS_RAISED = "loss raised"  # a gradient after which the server's loss raises an exception
    MALFORMED = "malformed"  # not a gradient of this step: another type, shape, dtype or step
    STALE = "stale"  # a gradient of a version of the model that is too old
    DRIFTED = "drifted"  # a rank whose parameters were not those of the others
    OTHER = "other"

    def __str__(self) -> str:
        return self.value


class ReplyError(NamedTuple):
    """Why a reply cannot be used."""

    kind: ErrorKind
    text: str  # continues the sentence "Worker 3 ..."

    def __str__(self) -> str:
        return self.text

    @classmethod
    def from_json(cls, value: object) -> "ReplyError":
        """Reads [kind, text], or the text alone, as older records have it."""
        kind, text = value if isinstance(value, list) else (ErrorKind.OTHER, value)
        if not isinstance(text, str):
            raise TypeError(f"An error of a record needs a text. Found {text!r}.")
        return cls(ErrorKind(kind), text)


NO_REPLY = ReplyError(ErrorKind.LATE, "sent no reply")
CAME_LATE = ReplyError(ErrorKind.LATE, "came late")


@dataclass(frozen=True, eq=False)
class Reply:
    """What the server received from one worker for one step. Nothing in it is trusted."""

    worker: int
    step: int
    gradient: "Tensor | None"  # [d]; None if there is none
    error: ReplyError | None = None  # why there is none
    late: bool = False  # a reply to an earlier step, which continued without it
    lost: bool = False  # of a ticket that no gradient came back for: the error is all that is known
