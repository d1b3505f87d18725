"""Centred clipping (Karimireddy, He and Jaggi, ICML 2021): nobody moves the last update by more than a radius."""

from dataclasses import dataclass

import torch
from torch import Tensor

from zeno.rules.rows import OnRows, Rows
from zeno.rules.rule import Aggregate, Descent, check_count, check_positive


@dataclass(frozen=True)
class CenteredClipping(OnRows):
    """Average of the candidates, each clipped to a radius around the last update; bears a faulty minority.

    v <- v + mean((x_i - v) * min(1, radius / ||x_i - v||)), `iterations` times, from the last update or from 0.
    """

    radius: float = 10.0
    iterations: int = 5

    def __post_init__(self) -> None:
        check_positive(self, "radius", self.radius)
        check_count(self, "iterations", self.iterations, 1)

    def on_rows(self, rows: Rows, descent: Descent | None, state: object) -> Aggregate:
        start = state.to(rows.candidates.tensor.device) if isinstance(state, Tensor) else None  # a checkpoint's: CPU
        if start is not None and start.shape != (rows.d,):
            raise ValueError(
                f"{self} needs the last update, of {rows.d} numbers, as its state. Found shape {list(start.shape)}."
            )
        products = rows.products_around(start)
        rows.lowered(self, rows.m - 1)
        weights = self._weights(products)
        update = rows.combine(weights)
        if start is not None:
            update.add_(start.to(update.dtype), alpha=1 - float(weights.sum()))
        return rows.result(update, state=update.clone())

    def _weights(self, products: Tensor) -> Tensor:
        """Where the centre goes, as weights [n] of rows - start, from their products alone."""
        squares, weights = products.diagonal(), torch.zeros_like(products[0])
        for _ in range(self.iterations):
            at = products @ weights
            distance = (squares - 2 * at + weights @ at).clamp_(min=0).sqrt_()
            clipped = (self.radius / distance).clamp_(max=1) / len(weights)
            weights = weights + clipped - clipped.sum() * weights
        return weights
