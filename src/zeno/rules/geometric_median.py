"""The geometric median (Chen, Su and Xu, 2017; Pillutla et al., 2022): least sum of distances to the candidates."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from zeno.rules.rule import Aggregate, Oracle, Positive, PositiveCount, Rows, Rule


@dataclass(frozen=True)
class GeometricMedian(Rule):
    """The point with the smallest sum of distances to the candidates; tolerates a faulty minority.

    By Weiszfeld's iterations, until it is within `tolerance` of where they lead, in units of the distance from the
    most central candidate to half of the others. Shorter distances count as this long: a candidate can be the median.
    """

    tolerance: Positive = 1e-6
    iterations: PositiveCount = 1000  # at most

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        products = rows.products()
        weights = torch.from_numpy(self._weights(products.cpu().numpy())).to(products.device)
        update = rows.weighted_sum(weights).update
        return rows.result(update, weights.clamp(min=1e-300))  # if most rows are the same one, others have weight 0

    def _weights(self, products: NDArray[np.float64]) -> NDArray[np.float64]:
        """The median as weights [n] of the rows, from <row_i - c, row_j - c> alone."""
        squares = products.diagonal()
        distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * products, 0))
        # From the mean of the half in the midst of all: a mean of all could be anywhere, and from a row itself
        # Weiszfeld hardly gets away. Not by sums of distances, in which a huge row leaves nothing of the others.
        middle = len(distances) // 2
        central = distances[np.partition(distances, middle, axis=1)[:, middle].argmin()]
        half = np.argsort(central, kind="stable")[: middle + 1]
        weights = np.zeros(len(central))
        weights[half] = 1 / len(half)
        scale = float(central[half[-1]])
        nearest, step = self.tolerance * scale, np.inf
        for _ in range(self.iterations if scale > 0 else 0):  # 0: most rows are the same one
            at, last, last_step = products @ weights, weights, step
            distance = np.sqrt(np.maximum(squares - 2 * at + weights @ at, 0))
            weights = 1 / np.maximum(distance, nearest)
            weights /= weights.sum()
            moved = weights - last
            step = math.sqrt(max(float(moved @ products @ moved), 0.0))
            if step <= nearest * (1 - step / last_step):  # steps shrink by this much: so far is what is left
                break
        return weights
