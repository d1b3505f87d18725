"""What every rule shares: how it is called, what it returns, and how bad rows are set aside.

A rule is a pure function of the candidates, one row for each worker. Row i is always worker i: a worker
that did not answer, or answered with something unusable, is a row of NaN. A row with any number that is not
finite never moves the update and counts as one of the faulty that the rule was told to bear; when there are
more of them than that, no honest update can be made, and the rule says so by raising `TooFewUsable`.

Shapes: m workers, d parameters.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

Descent = Callable[[Tensor], Tensor]
"""Candidates [m, d] -> [m], by how much each of them lowers the loss on samples of the server's own."""


class Aggregate(NamedTuple):
    """What a rule made of the candidates."""

    update: Tensor  # [d]
    scores: Tensor | None  # [m], higher is more trusted; None where the rule does not rank
    kept: Tensor  # [m] bool: the candidates that the update was made from
    state: object = None  # what the rule wants back at the next step


class Rule(Protocol):
    """Turns candidates into one update. Ours are frozen dataclasses: free repr, equality and pickling."""

    def __call__(self, candidates: Tensor, descent: Descent | None = None, state: object = None) -> Aggregate: ...


class TooFewUsable(ValueError):  # noqa: N818
    """More candidates are unusable than the rule was told to bear: the step is better skipped."""

    def __init__(self, rule: object, needed: int, usable: Tensor) -> None:
        super().__init__(f"{rule} needs {needed} usable candidates. Found {int(usable.sum())} of {len(usable)}.")


def usable_rows(candidates: Tensor) -> Tensor:
    """[m] bool: the rows of which every number is finite. Refuses anything but a [m, d] float tensor."""
    if candidates.ndim != 2 or len(candidates) == 0 or not candidates.is_floating_point():
        raise ValueError(
            "A rule needs candidates as one float tensor [workers, parameters] with at least one row. "
            f"Found {candidates.dtype} of shape {list(candidates.shape)}. Flatten each gradient, then torch.stack them."
        )
    return torch.isfinite(candidates).all(dim=1)


def average(rows: Tensor) -> Tensor:
    """Mean over the rows [n, d] -> [d], weighted before it is summed, so that huge numbers do not overflow."""
    return torch.full((len(rows),), 1 / len(rows), dtype=rows.dtype, device=rows.device) @ rows


def squared_norms(candidates: Tensor) -> Tensor:
    """||u||^2 of each row -> [m] in float64: float32 would overflow from 1e19 on."""
    return torch.stack([row @ row for row in map(Tensor.double, candidates)])


def check_count(rule: object, name: str, value: object, least: int) -> None:
    """Refuses a parameter that is not a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(
            f"{type(rule).__name__} needs {name} as a whole number of at least {least}. Found {name}={value!r}."
        )
