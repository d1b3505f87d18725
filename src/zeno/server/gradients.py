"""The forms in which gradients are passed to a `Server`, and their conversion to flat vectors."""

from collections.abc import Iterable, Mapping, Sequence, Sized
from itertools import islice
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from zeno.problem.errors import text_of, type_name
from zeno.problem.flat import plain_tensor
from zeno.workers.checks import as_gradient, malformed
from zeno.workers.reply import NO_REPLY, ReplyError

Array: TypeAlias = Tensor | np.ndarray
Gradient: TypeAlias = Array | Sequence[Array | None] | Mapping[str, Array | None]
"""One worker's gradient: a vector [d], a tensor for each parameter in order, or these by name; frozen ones are None."""

Entry: TypeAlias = Gradient | ReplyError | None
"""One worker's gradient; None where nothing was received, or a `zeno.ReplyError` that says why there is none."""

Gradients: TypeAlias = Array | Iterable[Entry] | Mapping[str, Entry]
"""An entry for each worker; all of them as one tensor [m, d]; or entries by name."""

MAX_LETTERS = 120  # of a worker's own text, in a reason
MAX_PARTS = 100_000  # tensors in an entry: an iterator may have no end


def as_entries(gradients: Gradients) -> Gradients:
    """What a caller passes, an array as a tensor."""
    found = plain_tensor(gradients) if isinstance(gradients, Tensor | np.ndarray) else None
    return gradients if found is None else found


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
    if isinstance(gradients, str | bytes | np.ndarray) or not isinstance(gradients, Iterable):
        raise ValueError(
            "A Server needs gradients as a list with one entry per worker, in order, by name, or as one tensor. "
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
    """One worker's entry as a vector [d] of the dtype and device of `like`, or what is wrong with it.

    `parameters` are all of the model by name, frozen ones included.
    """
    if entry is None:
        return NO_REPLY
    if isinstance(entry, ReplyError):
        return entry
    try:
        if isinstance(entry, Tensor | np.ndarray):
            found = as_gradient(entry, like, any_float=True)
            return found if isinstance(found, ReplyError) else found.to(like)
        parts = _by_parameter(entry, {_plain(name): parameter for name, parameter in parameters.items()})
        if isinstance(parts, ReplyError):
            return parts
        return torch.cat([part.to(like).flatten() for part in parts])
    except (Exception, SystemExit) as error:  # whatever code of the entry raises, it is this worker's fault
        return malformed(f"sent what cannot be read: {text_of(error)}"[:MAX_LETTERS])


def _by_parameter(entry: object, parameters: Mapping[str, Tensor]) -> list[Tensor] | ReplyError:
    """A tensor for each trainable parameter, in order."""
    names = [name for name, parameter in parameters.items() if parameter.requires_grad]
    given = _by_name(entry, names, list(parameters))
    if isinstance(given, ReplyError):
        return given
    unknown = [name for name, part in given.items() if name not in names and part is not None]
    missing = [name for name in names if name not in given]
    if unknown:
        return malformed(f"sent a gradient for {unknown[0][:MAX_LETTERS]!r}, which is not a trainable parameter")
    if missing:
        return malformed(f"sent no gradient for {missing[0]!r}")
    if all(given[name] is None for name in names):
        return malformed("sent no gradients: None for every parameter")
    parts: list[Tensor] = []
    for name in names:
        # `backward` did not reach a parameter that is None
        part = torch.zeros_like(parameters[name]) if given[name] is None else given[name]
        found = as_gradient(part, parameters[name], any_float=True)
        if isinstance(found, ReplyError):
            return ReplyError(found.kind, f"{found.text} for {name!r}")
        parts.append(found)
    return parts


def _by_name(entry: object, names: Sequence[str], everything: Sequence[str]) -> dict[str, object] | ReplyError:
    """The parts of an entry by name: of a list, one for each trainable parameter, or one for every parameter."""
    if isinstance(entry, Mapping):
        items = list(islice(entry.items(), MAX_PARTS + 1))
        if len(items) > MAX_PARTS:
            return malformed(f"sent more than {MAX_PARTS} tensors, expected {len(names)}")
        return {_plain(str.__str__(name)): part for name, part in items}  # raises for a name that is not a text
    parts = list(islice(list.__iter__(entry), MAX_PARTS)) if isinstance(entry, list) else None
    parts = list(islice(tuple.__iter__(entry), MAX_PARTS)) if isinstance(entry, tuple) else parts
    if parts is None:
        return malformed(f"sent {type_name(entry)}, expected a tensor, or one for each parameter")
    if len(parts) not in (len(names), len(everything)):
        return malformed(f"sent {len(parts)} tensors, expected {len(names)}")
    return dict(zip(names if len(parts) == len(names) else everything, parts, strict=True))


def _plain(name: str) -> str:
    """A parameter's name without the prefix that torch.compile adds."""
    return name.replace("_orig_mod.", "")
