"""What workers send to the server of your own loop: in which forms, and what can be wrong with it."""

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from zeno.rules.linalg.passes import all_finite
from zeno.server.core import NOT_FINITE

Sent: TypeAlias = Tensor | Sequence[Tensor | None] | Mapping[str, Tensor | None]
"""What one worker sent: one vector [d], a tensor for each trained parameter in their order, or these by name."""

Gradients: TypeAlias = Tensor | Iterable[Sent | None]
"""What the workers sent, an entry for each, None where nothing came; or all of them as one tensor [m, d]."""

MOST_LETTERS = 120  # of what a worker wrote, in a reason


def number_of(gradients: Gradients, workers: int | None, d: int) -> int:
    """How many workers there are; refuses what its sender, and no worker, got wrong."""
    if isinstance(gradients, Tensor):
        error = _unlike(gradients, (len(gradients) if gradients.ndim else 0, d))
        if error is not None:
            raise ValueError(
                f"A Server needs gradients as one tensor [workers, {d}] of floating point. Found {gradients.dtype} of "
                f"shape {list(gradients.shape)}. zeno.flatten(model) makes a row of it."
            )
    if isinstance(gradients, Mapping | str | bytes | np.ndarray) or not isinstance(gradients, Iterable):
        raise ValueError(
            "A Server needs gradients as a list with an entry for each worker, in their order, or as one tensor. "
            f"Found {type(gradients).__name__}."
        )
    size = len(gradients) if isinstance(gradients, Sized) else workers
    if size is None:
        raise ValueError(
            "A Server needs to know how many workers there are before the first of an iterator. "
            f"Found {type(gradients).__name__} without a length. Pass a list, or an object with __len__."
        )
    if workers is not None and size != workers:
        raise ValueError(
            f"A Server needs an entry for each of its {workers} workers at every step. Found {size}. "
            "Entry i is worker i: pass None for one that sent nothing."
        )
    if size == 0:
        raise ValueError("A Server needs at least one worker. Found no gradients.")
    return size


def as_vector(sent: object, parameters: Mapping[str, Tensor], like: Tensor) -> Tensor | str:
    """What a worker sent as one vector [d] like another, or what is wrong with it. Looks at the numbers last."""
    if sent is None:
        return "sent no reply"
    try:
        if isinstance(sent, Tensor):
            parts: list[Tensor] | str = _unlike(sent, like.shape) or [sent]
        else:
            parts = _by_parameter(sent, parameters)
        if isinstance(parts, str):
            return parts
        parts = [part.detach().to(like) for part in parts]  # themselves, where nothing has to change
        vector = parts[0] if isinstance(sent, Tensor) else torch.cat([part.flatten() for part in parts])
        return vector if all_finite(vector) else NOT_FINITE
    except Exception as error:  # such as of a tensor without memory: whatever it is, it is this worker's
        return f"sent what cannot be read: {type(error).__name__}: {error}".splitlines()[0][:MOST_LETTERS]


def _by_parameter(sent: object, parameters: Mapping[str, Tensor]) -> list[Tensor] | str:
    """A tensor for each parameter, in their order."""
    parameters = {_plain(name): parameter for name, parameter in parameters.items()}
    if isinstance(sent, Mapping):
        given = {_plain(str(name)): part for name, part in sent.items()}
        unknown = [name for name, part in given.items() if name not in parameters and part is not None]
        missing = [name for name in parameters if name not in given]
        if unknown:
            return f"sent numbers for {unknown[0][:MOST_LETTERS]!r}, which is no trained parameter"
        if missing:
            return f"sent no numbers for {missing[0]!r}"
        sent = [given[name] for name in parameters]
    if not isinstance(sent, list | tuple):
        return f"sent {type(sent).__name__}, expected a tensor, or one for each parameter"
    if len(sent) != len(parameters):
        return f"sent {len(sent)} tensors, expected {len(parameters)}"
    if all(part is None for part in sent):
        return "sent no gradients: None for every parameter"
    parts: list[Tensor] = []
    for part, (name, parameter) in zip(sent, parameters.items(), strict=True):
        if part is None:  # `backward` did not reach it
            part = torch.zeros_like(parameter)
        error = _unlike(part, parameter.shape)
        if error is not None:
            return f"{error} for {name!r}"
        parts.append(part)
    return parts


def _unlike(part: object, shape: Sequence[int]) -> str | None:
    """What tells a part from numbers of this shape, or None. Other precisions, and other devices, will do."""
    if not isinstance(part, Tensor):
        return f"sent {type(part).__name__}, expected a tensor"
    if part.is_nested or part.layout != torch.strided or not part.is_floating_point():
        kind = "nested" if part.is_nested else str(part.layout)
        return f"sent {part.dtype}, {kind}, expected floating point, torch.strided"
    if part.shape != torch.Size(shape):
        return f"sent numbers of shape {list(part.shape)}, expected {list(shape)}"
    return None


def _plain(name: str) -> str:
    """The name of a parameter, also in a model that torch.compile has wrapped."""
    return name.replace("_orig_mod.", "")
