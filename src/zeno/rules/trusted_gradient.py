"""The server's own gradient, kept for several arrivals: the state of rules that judge each candidate by it."""

import torch
from torch import Tensor

from zeno.rules.linalg.passes import squared_norms
from zeno.rules.rule import Oracle, Rows, likeness_of


def trusted_gradient(rows: Rows, oracle: Oracle | None, state: object, every: int) -> tuple[Tensor, dict[str, object]]:
    """The gradient [d] that was last computed, and the state for the next step.

    It is computed anew where `every` candidates or more were judged by the last one.
    """
    if isinstance(state, dict) and not is_due(state, every):
        gradient, judged = state["gradient"].to(rows.device), state["judged"]  # a checkpoint's: CPU
        if gradient.shape != (rows.d,):
            raise ValueError(f"{rows.part} needs a gradient of {rows.d} numbers. Found {list(gradient.shape)}.")
    else:
        gradient, judged = rows.server_gradient(oracle), 0  # not a copy: an oracle is of one step, and so is its memory
    return gradient, {"gradient": gradient, "judged": judged + rows.n}


def is_due(state: object, every: int) -> bool:
    """Whether the gradient is computed anew at this step."""
    return not isinstance(state, dict) or state["judged"] >= every


def likeness_to(rows: Rows, gradient: Tensor) -> Tensor | None:
    """[2, m] the candidates beside this gradient, so that none is computed for the record only; None for mixtures."""
    if rows.mixed:
        return None
    products, squares = (rows.by_worker(found, torch.nan) for found in (rows.dots(gradient), rows.squared_norms()))
    return likeness_of(products, squares, squared_norms(gradient[None])[0])
