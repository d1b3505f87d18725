"""Least squares on the simplex, exactly: the mixture of n vectors that is nearest to a target.

    minimise  w' Q w   over  w >= 0, sum(w) = 1

Q holds the inner products of the errors, which are the vectors minus the target. The method is an active-set method:
solve for the weights that are not 0, drop those that would be negative, and add the one that would help most, until
there is none.
"""

import torch
from torch import Tensor

ROUNDING = 1e-9
"""Relative error of the products. It makes the solution unique: copies share their weight equally, and vectors so large
that nothing but rounding errors would be left of them get none."""


class Mixtures:
    """Mixtures of n vectors, judged by the products of their errors [n, n]. Weights are [n], in float64."""

    def __init__(self, products: Tensor) -> None:
        self._device, products = products.device, products.double().cpu()
        squares = products.diagonal()
        smallest = float(squares[squares > 0].min()) if bool((squares > 0).any()) else 1.0
        self._products = products + ROUNDING * squares.clamp(min=smallest).diag()  # [n, n]

    def error(self, weights: Tensor) -> float:
        """The squared length of the error of a mixture."""
        weights = weights.cpu()
        return float(weights @ self._products @ weights)

    def nearest(self, among: Tensor) -> Tensor:
        """The weights of the mixture of those among [n] that is nearest to the target."""
        products = self._products[among.cpu()][:, among.cpu()]
        problem = _Problem(products, products.diagonal().sqrt())
        support = torch.ones(len(products), dtype=torch.bool)
        weights = problem.solve(support)
        for _ in range(len(products)):  # a first guess, from above: each round leaves fewer
            if not bool((weights < 0).any()):
                break
            support = weights > 0
            weights = problem.solve(support)
        for _ in range(10 * len(products)):  # each round lowers the objective
            slope = problem.slope(weights)
            if float(slope.min()) > -1e-4 * ROUNDING:  # fine enough to see that a copy would share a small weight
                break
            support[int(slope.argmin())] = True
            weights = problem.descend(weights, support)
        return self._spread(weights, among)

    def _spread(self, weights: Tensor, among: Tensor) -> Tensor:
        found = weights.new_zeros(len(self._products))
        found[among.cpu()] = weights
        return found.to(self._device)


class _Problem:
    """The problem with its scale: vectors of very different sizes lie side by side."""

    def __init__(self, products: Tensor, scale: Tensor) -> None:
        self.products, self.scale = products, scale

    def solve(self, support: Tensor) -> Tensor:
        """The minimum with these weights free, possibly negative, and the others 0."""
        scale = self.scale[support]  # Q z = 1 has the direction of the solution
        scaled = self.products[support][:, support] / (scale[:, None] * scale)
        weights = torch.zeros(len(support), dtype=torch.float64)
        weights[support] = torch.linalg.solve(scaled, scale.min() / scale) / scale
        return weights / weights.sum()

    def slope(self, weights: Tensor) -> Tensor:
        """[n] how steeply the objective falls towards each vector, relative to its size; below 0 where it falls."""
        gradient = self.products @ weights
        here = weights @ gradient
        return (gradient - here) / (self.scale * here.clamp(min=1e-300).sqrt())

    def descend(self, weights: Tensor, support: Tensor) -> Tensor:
        """To the minimum on the support; drops from it, in place, what becomes 0 on the way."""
        for _ in range(len(weights)):
            target = self.solve(support)
            negative = target < 0
            if not bool(negative.any()):
                return target
            shares = torch.where(negative, weights / (weights - target), torch.inf)
            first = int(shares.argmin())
            weights = weights + float(shares[first]) * (target - weights)
            weights[first], support[first] = 0.0, False
            weights = weights.clamp(min=0)
        return weights
