"""Centred clipping (Karimireddy, He and Jaggi, ICML 2021): no candidate moves the last update by more than a radius."""

from dataclasses import dataclass

import torch
from torch import Tensor

from zeno.rules.rule import Aggregate, Oracle, Positive, PositiveCount, Rows, Rule


@dataclass(frozen=True)
class CenteredClipping(Rule):
    """Average of the candidates, each clipped to a radius around the last update; tolerates a faulty minority.

    v <- v + mean((x_i - v) * min(1, radius / ||x_i - v||)), `iterations` times, from the last update or from 0.
    """

    radius: Positive = 10.0
    iterations: PositiveCount = 5

    @property
    def averages(self) -> bool:
        return False  # the last update is part of the next

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        start = state.to(rows.device) if isinstance(state, Tensor) else None  # a checkpoint's: CPU
        if start is not None and start.shape != (rows.d,):
            raise ValueError(
                f"{self} needs the last update, of {rows.d} numbers, as its state. Found shape {list(start.shape)}."
            )
        weights = self._weights(rows.products_around(start))
        result = rows.weighted_sum(weights)
        if start is not None:
            result.update.add_(start.to(result.update.dtype), alpha=1 - float(weights.sum()))
        return result._replace(state=result.update.clone())

    def _weights(self, products: Tensor) -> Tensor:
        """Where the centre goes, as weights [n] of rows - start, from their products alone."""
        squares, weights = products.diagonal(), torch.zeros_like(products[0])
        for _ in range(self.iterations):
            at = products @ weights
            distance = (squares - 2 * at + weights @ at).clamp_(min=0).sqrt_()
            clipped = (self.radius / distance).clamp_(max=1) / len(weights)
            weights = weights + clipped - clipped.sum() * weights
        return weights
