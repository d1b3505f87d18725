"""What workers send to the server of your own loop: in which forms, and what can be wrong with it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from zeno.rules.memory import all_finite
from zeno.step import NOT_FINITE

Sent: TypeAlias = Tensor | Sequence[Tensor | None] | Mapping[str, Tensor | None]
"""What one worker sent: one vector [d], a tensor for each trained parameter in their order, or these by name."""

Gradients: TypeAlias = Tensor | Iterable[Sent | None]
"""What the workers sent, an entry for each, None where nothing came; or all of them as one tensor [m, d]."""


def as_vector(sent: object, parameters: Mapping[str, Tensor], like: Tensor) -> Tensor | str:
    """What a worker sent as one vector [d] like another, or what is wrong with it. Looks at the numbers last."""
    if sent is None:
        return "sent no reply"
    parts = _whole(sent, like) if isinstance(sent, Tensor) else _by_parameter(sent, parameters)
    if isinstance(parts, str):
        return parts
    try:
        parts = [part.detach().to(like) for part in parts]  # themselves, where nothing has to change
        vector = parts[0] if isinstance(sent, Tensor) else torch.cat([part.flatten() for part in parts])
        return vector if all_finite(vector) else NOT_FINITE
    except RuntimeError as error:  # such as a tensor without memory
        return f"sent a tensor that cannot be read: {str(error).splitlines()[0]}"


def _whole(sent: Tensor, like: Tensor) -> list[Tensor] | str:
    return _unlike(sent, like) or [sent]


def _by_parameter(sent: object, parameters: Mapping[str, Tensor]) -> list[Tensor] | str:
    """A tensor for each parameter, in their order."""
    if isinstance(sent, Mapping):
        unknown = [name for name, part in sent.items() if name not in parameters and part is not None]
        missing = [name for name in parameters if name not in sent]
        if unknown:
            return f"sent numbers for {unknown[0]!r}, which is no trained parameter"
        if missing:
            return f"sent no numbers for {missing[0]!r}"
        sent = [sent[name] for name in parameters]
    if not isinstance(sent, list | tuple):
        return f"sent {type(sent).__name__}, expected a tensor, or one for each parameter"
    if len(sent) != len(parameters):
        return f"sent {len(sent)} tensors, expected {len(parameters)}"
    parts: list[Tensor] = []
    for part, (name, parameter) in zip(sent, parameters.items(), strict=True):
        if part is None:  # `backward` did not reach it
            part = torch.zeros_like(parameter)
        error = _unlike(part, parameter)
        if error is not None:
            return f"{error} for {name!r}"
        parts.append(part)
    return parts


def _unlike(part: object, like: Tensor) -> str | None:
    """What tells a part from numbers like others, or None. Other precisions, and other devices, will do."""
    if not isinstance(part, Tensor):
        return f"sent {type(part).__name__}, expected a tensor"
    if part.shape != like.shape:
        return f"sent numbers of shape {list(part.shape)}, expected {list(like.shape)}"
    if not part.is_floating_point() or part.layout != torch.strided:
        return f"sent {part.dtype}, {part.layout}, expected floating point, torch.strided"
    return None
