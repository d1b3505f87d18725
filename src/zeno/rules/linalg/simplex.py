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


def nearest_mixture(errors: Tensor) -> Tensor:
    """The weights [n] of the mixture of the errors [n, k] that is nearest to 0, in float64."""
    products = _products(errors)
    problem = _Problem(products, products.diagonal().sqrt())
    support = torch.ones(len(errors), dtype=torch.bool)
    weights = problem.solve(support)
    for _ in range(len(errors)):  # a first guess, from above: each round leaves fewer
        if not bool((weights < 0).any()):
            break
        support = weights > 0
        weights = problem.solve(support)
    for _ in range(10 * len(errors)):  # each round lowers the objective
        slope = problem.slope(weights)
        if float(slope.min()) > -1e-4 * ROUNDING:  # fine enough to see that a copy would share a small weight
            break
        support[int(slope.argmin())] = True
        weights = problem.descend(weights, support)
    return weights


def even_mixture(errors: Tensor, limit: float) -> Tensor | None:
    """Equal weights [n] for many of the errors [n, k], such that the mixture has at most this squared length.

    Leaves out one at a time, the one without which the mixture is shortest. None if that does not lead there.
    """
    products = _products(errors)
    there = ROUNDING * products.diagonal() <= limit
    for left in range(int(there.sum()), 0, -1):
        sums = products[:, there].sum(dim=1)
        total = sums[there].sum()
        if float(total) <= limit * left**2:
            return there.double() / left
        without = torch.where(there, total - 2 * sums + products.diagonal(), torch.inf)
        if float(without.min()) * left**2 >= float(total) * (left - 1) ** 2:
            return None
        there[int(without.argmin())] = False
    return None


def _products(errors: Tensor) -> Tensor:
    """[n, n] in float64, with the relative error on the diagonal. None of that is 0."""
    products = (errors.double() @ errors.double().T).cpu()
    squares = products.diagonal()
    smallest = float(squares[squares > 0].min()) if bool((squares > 0).any()) else 1.0
    return products + ROUNDING * squares.clamp(min=smallest).diag()


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
