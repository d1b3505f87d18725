"""What a rule may ask, and what it returns.

Shapes: m workers, d parameters.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Oracle(Protocol):
    """The loss f_r on the server's samples, at the current parameters x. `zeno.Problem.at` returns one."""

    @property
    def lr(self) -> float | Tensor:
        """The step that is tried: one learning rate, or one for each parameter [d]."""

    def descents(self, candidates: Tensor | Sequence[Tensor]) -> Tensor:
        """By how much each candidate u lowers the loss: f_r(x) - f_r(x - lr * u) -> [m] in float64.

        NaN for a candidate that is not finite.
        """

    def gradient(self, after: Tensor | None = None) -> Tensor:
        """The gradient of f_r at x, or at x - lr * after -> [d]."""

    def half_gradients(self) -> Tensor:
        """The gradients at x on two halves of the samples -> [2, d]: one to train on, and one to judge by.

        A sample is in the same half at every step.
        """


@runtime_checkable
class RecordingOracle(Oracle, Protocol):
    """An oracle that keeps for whose candidate the loss raised an exception, as that of a `zeno.Server` does."""

    def descents_of(self, candidates: Tensor | Sequence[Tensor], senders: Sequence[int | None]) -> Tensor:
        """The descents -> [n]; each candidate is a multiple of what one worker sent, or, if None, a mixture."""


def descents_of(oracle: Oracle, candidates: Tensor, senders: Sequence[int | None]) -> Tensor:
    """The descents -> [n], from any oracle."""
    if isinstance(oracle, RecordingOracle):
        return oracle.descents_of(candidates, senders)
    return oracle.descents(candidates)


class Aggregate(NamedTuple):
    """What a rule returns."""

    update: Tensor  # [d]
    weights: Tensor  # [m] float64: the share of each candidate in the update; 0: dropped; below 0: subtracted
    scores: Tensor | None = None  # [m], higher is more trusted; None where the rule does not rank
    state: object = None  # what the rule wants back at the next step; from a checkpoint, its tensors are on the CPU
    own: float = 0.0  # the share of the server's own gradient in the update
    note: str | None = None  # what the rule could not do as documented at this step; it goes on the record
    likeness: Tensor | None = None  # [2, m] candidates beside the server's own gradient, if known; see `likeness_of`

    @property
    def kept(self) -> Tensor:
        """[m] bool: the candidates that the update was made from."""
        return self.weights != 0


def likeness_of(products: Tensor, squares: Tensor, square: Tensor) -> Tensor:
    """[2, m] the cosines of candidates with the server's own gradient, and their lengths relative to its length.

    From their products with it [m], their squared lengths [m] and its own; NaN where a length is 0 or not finite.
    """
    lengths, length = squares.double().sqrt(), square.double().sqrt()
    known = (squares > 0) & (square > 0)
    cosines = torch.where(known, products.double() / (lengths * length), torch.nan).clamp(-1, 1)
    return torch.stack([cosines, torch.where(known, lengths / length, torch.nan)])


def checked(found: object, rule: object, m: int, d: int) -> Aggregate:
    """What a rule returned for m candidates of size d; raises TypeError unless it is an aggregate of them."""
    if isinstance(found, Aggregate):
        shapes = [tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__ for part in found[:2]]
        if shapes == [(d,), (m,)]:
            return found
        what = f"an update of {shapes[0]} and weights of {shapes[1]}"
    else:
        what = "None" if found is None else f"a {type(found).__name__}"
    raise TypeError(
        f"The rule {rule} must return a zeno.Aggregate(update, weights), with update a tensor of shape [d] = [{d}] and "
        f"weights one of shape [m] = [{m}]. Found {what}."
    )


class TooFewUsable(ValueError):  # noqa: N818
    """Too little is usable for an update, so the step should be skipped.

    More candidates are unusable than the rule tolerates, or the update that it made of them is not usable itself.
    """

    @classmethod
    def of(cls, rule: object, needed: int, usable: Tensor) -> "TooFewUsable":
        return cls(f"{rule} needs {needed} usable candidates. Found {int(usable.sum())} of {len(usable)}.")
