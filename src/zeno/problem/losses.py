"""The two forms of a loss: loss(outputs, targets), and loss(model, batch) with a batch in the user's own form.

A loss has the second form if its first parameter is named `model`. Both return the mean over the samples.

Shapes: n samples.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from zeno.problem.nested import NestedBatch, Piece

Loss = Callable[[Any, Any], Tensor]
"""(outputs [n, ...], targets [n, ...]) or (model, batch) -> the mean loss over the samples."""


def takes_batch(loss: object) -> bool:
    """Whether a loss is called as loss(model, batch), not as loss(outputs, targets); raises if it can be neither."""
    found = type(loss).__name__
    if callable(loss):
        try:
            signature = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss)
        except (TypeError, ValueError):  # a built-in function
            return False
        if _takes_two(signature):
            return next(iter(signature.parameters)) == "model"
        found = f"{getattr(loss, '__name__', found)}{signature}"
    raise ValueError(f"A Server needs loss as a function: loss(outputs, targets) or loss(model, batch). Found {found}.")


def _takes_two(signature: inspect.Signature) -> bool:
    try:
        signature.bind(None, None)
    except TypeError:
        return False
    return True


def loss_of_outputs(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    try:
        return loss(outputs, targets)
    except (AttributeError, TypeError) as error:  # as of a tensor that is used as a model
        raise TypeError(
            f"{error}. The loss was called as loss(outputs, targets). If it is a loss(model, batch), name its first "
            "parameter `model`."
        ) from error


def precise_loss(loss: Loss, outputs: Tensor, targets: Tensor) -> float:
    """In float64 from the outputs on, if the loss allows it."""
    try:
        found = loss_of_outputs(loss, outputs.double(), targets.double() if targets.is_floating_point() else targets)
    except RuntimeError:  # a loss with float32 weights
        found = loss_of_outputs(loss, outputs, targets)
    return float(one_number(found))


def loss_of_pieces(loss: Loss, model: nn.Module, batch: NestedBatch) -> Tensor:
    """The mean over all samples: each piece counts by its number of samples."""
    return torch.stack([piece.size / batch.size * loss_of_piece(loss, model, piece) for piece in batch.pieces]).sum()


def precise_loss_of_pieces(loss: Loss, model: nn.Module, batch: NestedBatch) -> float:
    """The same, averaged in float64."""
    return sum(piece.size / batch.size * float(loss_of_piece(loss, model, piece)) for piece in batch.pieces)


def loss_of_piece(loss: Loss, model: nn.Module, piece: Piece) -> Tensor:
    return one_number(loss(model, piece.batch())).reshape(())


def one_number(loss: object) -> Tensor:
    """The loss as it was returned; raises unless it is a tensor of one number."""
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss
    found = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
    if isinstance(loss, Tensor):
        advice = "Pass reduction='mean', or take its mean."
    elif isinstance(loss, int | float):
        advice = "Leave out .item(), and use reduction='mean'."
    else:
        advice = "Return the loss alone. A Hugging Face model computes model(**batch).loss from a batch with labels."
    raise ValueError(
        f"A Server needs a loss that returns one number as a tensor, the mean over the samples. Found {found}. {advice}"
    )


def require_gradient(loss: Tensor) -> Tensor:
    """The loss; raises if it does not depend on the parameters."""
    if not loss.requires_grad:
        raise ValueError(
            "A Server needs a loss with a gradient. Found one without: it was detached, or computed under no_grad. "
            "Leave that out."
        )
    return loss
