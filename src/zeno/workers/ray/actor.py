"""The process that workers run in on a Ray cluster, and the messages it exchanges with the driver."""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from zeno.problem.dataset import as_tensor
from zeno.problem.errors import text_of, type_name
from zeno.workers.checks import as_gradient, malformed
from zeno.workers.ray.session import find_ray
from zeno.workers.reply import ErrorKind, Reply, ReplyError

Inputs = tuple[np.ndarray, dict[str, np.ndarray]]
"""The parameters [d] and buffers of a step, as arrays, which the actors of one machine share."""

FLOATS = (np.float16, np.float32, np.float64)  # that torch has as well

# Kinds of errors that a worker can report of itself. Only the driver can say that it died or is late.
KINDS_OF_A_WORKER = (ErrorKind.RAISED, ErrorKind.MALFORMED, ErrorKind.NOT_FINITE)


class RemoteWorker(Protocol):
    """A worker that can be pickled, such as `zeno.workers.worker.Worker`."""

    @property
    def index(self) -> int: ...

    def gradient(self, params: Tensor, buffers: Mapping[str, Tensor], step: int) -> Tensor: ...


class Answer(NamedTuple):
    """What an actor sends: a gradient, or why there is none."""

    step: int
    gradient: np.ndarray | None
    error: ReplyError | None = None


class Process:
    """An actor with one torch thread. It fetches `content` from the object store each time that it starts."""

    def __init__(self, parcel: "list[Any]", path: Sequence[str]) -> None:
        torch.set_num_threads(1)
        sys.path.extend(place for place in path if place not in sys.path)
        self.content: Any = find_ray().get(parcel[0])

    def here(self) -> tuple[int, str]:
        """The number of this process, and the name of its machine."""
        return os.getpid(), socket.gethostname()


class Actor(Process):
    """Some of the workers, in their own process. Ray creates it, also again after it died."""

    def __init__(self, parcel: "list[Any]", path: Sequence[str], own: Sequence[int]) -> None:
        super().__init__(parcel, path)
        self.workers: dict[int, RemoteWorker] = {worker.index: worker for worker in self.content if worker.index in own}

    def gradient(self, worker: int, step: int, inputs: Inputs) -> Answer:
        params, buffers = as_tensor(inputs[0]), {name: as_tensor(array) for name, array in inputs[1].items()}
        try:
            # Checked here already: half a gigabyte that is not a gradient would hold up the others on its way.
            found = as_gradient(self.workers[worker].gradient(params, buffers, step), params)
            return Answer(step, None, found) if isinstance(found, ReplyError) else Answer(step, as_array(found))
        except Exception as error:
            return Answer(step, None, ReplyError(ErrorKind.RAISED, f"raised {text_of(error)}"))


class Call(NamedTuple):
    """What an actor was asked for: the gradient of a worker at a step."""

    worker: int
    step: int

    def reply(self, answer: object, like: Tensor) -> Reply:
        """The reply in an actor's answer, of which nothing is trusted. The server checks the step and the numbers."""
        if type(answer) is not Answer or type(answer.step) is not int:
            return self.failed(malformed(f"sent {type_name(answer)}, expected an answer"))
        error, gradient = answer.error, answer.gradient
        if error is not None:
            known = type(error) is ReplyError and type(error.kind) is ErrorKind and type(error.text) is str
            text = error.text[:1000] if known else type_name(error)
            if known and error.kind in KINDS_OF_A_WORKER:
                return self.failed(ReplyError(error.kind, text))
            return self.failed(ReplyError(ErrorKind.RAISED, f"raised {text}"))
        if type(gradient) is not np.ndarray or gradient.dtype not in FLOATS:
            return self.failed(malformed(f"sent {type_name(gradient)}, expected an array of floating point"))
        found = as_gradient(gradient, like)
        return self.failed(found) if isinstance(found, ReplyError) else Reply(self.worker, answer.step, found)

    def failed(self, error: ReplyError) -> Reply:
        return Reply(self.worker, self.step, None, error)


def search_path() -> list[str]:
    """Where this process finds modules, so that actors on this machine find the user's modules as well."""
    return [os.getcwd(), *filter(None, sys.path)]


def as_array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()
