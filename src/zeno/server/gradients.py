"""The forms in which gradients are passed to a `Server`, and their conversion to flat vectors."""

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from zeno.workers.checks import gradient_error, malformed
from zeno.workers.reply import NO_REPLY, ReplyError

Gradient: TypeAlias = Tensor | Sequence[Tensor | None] | Mapping[str, Tensor | None]
"""One worker's gradient: a vector [d], a tensor for each trainable parameter in order, or these by name."""

Gradients: TypeAlias = Tensor | Iterable[Gradient | None]
"""An entry for each worker, None where nothing was received; or all of them as one tensor [m, d]."""

MAX_LETTERS = 120  # of a worker's own text, in a reason


def num_workers(gradients: Gradients, workers: int | None, d: int) -> int:
    """How many workers there are. Raises for mistakes by the caller; a worker's mistake is found later."""
    if isinstance(gradients, Tensor):
        rows = len(gradients) if gradients.ndim else 0
        dense = gradients.layout == torch.strided and not gradients.is_nested
        if not dense or gradients.shape != (rows, d) or not gradients.is_floating_point():
            raise ValueError(
                f"A Server needs gradients as one floating-point tensor [workers, {d}]. Found {gradients.dtype} of "
                f"shape {list(gradients.shape)}. zeno.flatten(model) returns one row."
            )
    if isinstance(gradients, Mapping | str | bytes | np.ndarray) or not isinstance(gradients, Iterable):
        raise ValueError(
            "A Server needs gradients as a list with one entry per worker, in order, or as one tensor. "
            f"Found {type(gradients).__name__}."
        )
    size = len(gradients) if isinstance(gradients, Sized) else workers
    if size is None:
        raise ValueError(
            "A Server needs to know the number of workers before it reads an iterator. "
            f"Found {type(gradients).__name__} without a length. Pass a list, or an object with __len__."
        )
    if workers is not None and size != workers:
        raise ValueError(
            f"A Server needs one entry for each of its {workers} workers at every step. Found {size}. "
            "Entry i is worker i: pass None for a worker that sent nothing."
        )
    if size == 0:
        raise ValueError("A Server needs at least one worker. Found no gradients.")
    return size


def flat_gradient(entry: object, parameters: Mapping[str, Tensor], like: Tensor) -> Tensor | ReplyError:
    """One worker's entry as a vector [d] of the dtype and device of `like`, or what is wrong with it."""
    if entry is None:
        return NO_REPLY
    try:
        if isinstance(entry, Tensor):
            return gradient_error(entry, like, any_float=True, finite=False) or entry.detach().to(like)
        parts = _by_parameter(entry, parameters)
        if isinstance(parts, ReplyError):
            return parts
        return torch.cat([part.detach().to(like).flatten() for part in parts])
    except Exception as error:  # for example a tensor without storage: whatever it is, it is this worker's fault
        return malformed(f"sent what cannot be read: {type(error).__name__}: {error}".splitlines()[0][:MAX_LETTERS])


def _by_parameter(entry: object, parameters: Mapping[str, Tensor]) -> list[Tensor] | ReplyError:
    """A tensor for each parameter, in order."""
    parameters = {_plain(name): parameter for name, parameter in parameters.items()}
    if isinstance(entry, Mapping):
        given = {_plain(str(name)): part for name, part in entry.items()}
        unknown = [name for name, part in given.items() if name not in parameters and part is not None]
        missing = [name for name in parameters if name not in given]
        if unknown:
            return malformed(f"sent a gradient for {unknown[0][:MAX_LETTERS]!r}, which is not a trainable parameter")
        if missing:
            return malformed(f"sent no gradient for {missing[0]!r}")
        entry = [given[name] for name in parameters]
    if not isinstance(entry, list | tuple):
        return malformed(f"sent {type(entry).__name__}, expected a tensor, or one for each parameter")
    if len(entry) != len(parameters):
        return malformed(f"sent {len(entry)} tensors, expected {len(parameters)}")
    if all(part is None for part in entry):
        return malformed("sent no gradients: None for every parameter")
    parts: list[Tensor] = []
    for part, (name, parameter) in zip(entry, parameters.items(), strict=True):
        part = torch.zeros_like(parameter) if part is None else part  # `backward` did not reach it
        error = gradient_error(part, parameter, any_float=True, finite=False)
        if error is not None:
            return ReplyError(error.kind, f"{error.text} for {name!r}")
        parts.append(part)
    return parts


def _plain(name: str) -> str:
    """A parameter's name without the prefix that torch.compile adds."""
    return name.replace("_orig_mod.", "")
