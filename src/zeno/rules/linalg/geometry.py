"""Norms, products and distances of the candidates as received, each computed once.

Shapes: m workers, d parameters.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from zeno.problem.flat import plain_tensor
from zeno.rules.linalg import passes

NEARLY_EQUAL = 0.01  # squared distances below this share of the squared norms have lost too many digits
CANCELLED = 1e-3
"""A mixture whose squared length is below this share of that of its parts has lost too many digits. A mean of n honest
rows has a share of 1 / n or more."""


class Geometry:
    """m candidates of d numbers, usable or not; read-only, and read as few times as possible."""

    def __init__(self, tensor: Tensor) -> None:
        tensor = tensor if (plain := plain_tensor(tensor)) is None else plain
        is_tensor = isinstance(tensor, Tensor)
        if not is_tensor or tensor.ndim != 2 or 0 in tensor.shape or not tensor.is_floating_point():
            found = f"{tensor.dtype} of shape {list(tensor.shape)}" if is_tensor else type(tensor).__name__
            raise ValueError(
                "A rule needs candidates as one float tensor [workers, parameters], at least one of each. "
                f"Found {found}. Flatten each gradient, then torch.stack them."
            )
        self.candidates = tensor

    @cached_property
    def usable(self) -> Tensor:
        """[m] bool: the rows in which every number is finite, and which are no longer than `passes.LARGEST`.

        All rows of finite float32 are usable.
        """
        return self._squares <= passes.LARGEST**2  # False for NaN

    @property
    def usable_squares(self) -> Tensor:
        """||x||^2 -> [m] in float64; 0 for unusable rows."""
        return self._squares.where(self.usable, 0)

    @property
    def _squares(self) -> Tensor:
        # If a rule asked for the products around the origin, they contain these sums already.
        return self._around_origin.diagonal() if "_around_origin" in self.__dict__ else self.squared_norms

    @cached_property
    def squared_norms(self) -> Tensor:
        """||x||^2 -> [m] in float64; not finite for a row that is not."""
        return passes.squared_norms(self.candidates)

    @cached_property
    def _around_origin(self) -> Tensor:
        return self._products(None)

    @cached_property
    def products(self) -> Tensor:
        """<x_i - c, x_j - c> -> [m + 1, m + 1] in float64, the last x being the origin; 0 for unusable rows.

        c is the origin, unless candidates nearly agree, as they do late in training: then their differences would
        be lost beside their size, and c is a row in the middle of the crowd. It is never a mean, which one huge row
        could move anywhere.
        """
        around_origin = products = self._around_origin
        c = None
        for _ in range(3):
            if (crowded := self._crowded(products)) is None:
                break
            c, products = crowded, self._products(self.candidates[crowded])
        if c is None:
            return self._with_origin(products)
        return self._with_origin(products, around_origin[c, c], around_origin[c])

    @cached_property
    def squared_distances(self) -> Tensor:
        """||x_i - x_j||^2 -> [m, m] in float64; 0 for unusable rows."""
        products = self.products[:-1, :-1]
        distances, squares = squared_distances(products), products.diagonal()
        # Other crowds, much nearer to each other than to c: each gets its own centre.
        lost = (distances < NEARLY_EQUAL * (squares[:, None] + squares)).fill_diagonal_(False)
        for _ in range(len(lost)):  # each round settles all distances of one row
            if not bool(lost.any()):
                break
            centre = int(lost.sum(dim=1).argmax())
            crowd = [*lost[centre].nonzero().flatten().tolist(), centre]
            around = self._products(self.candidates[centre], crowd)
            index = torch.tensor(crowd, device=lost.device)
            distances[index[:, None], index] = squared_distances(around)
            lost[index[:, None], index] = False
        return distances

    def products_around(self, centre: Tensor | None, with_origin: bool = False) -> Tensor:
        """`products` around a given centre; None: the origin. Only `with_origin` is the last x the origin."""
        products = self._around_origin if centre is None else self._products(centre)
        if centre is None or not with_origin:
            return self._with_origin(products)
        square = passes.squared_norms(centre[None])[0]
        return self._with_origin(products, square, passes.dots(self.candidates, centre))

    def _with_origin(self, products: Tensor, square: Tensor | float = 0.0, dots: Tensor | float = 0.0) -> Tensor:
        """Appends the origin, by ||c||^2 and <x_i, c>, and clears unusable rows: [m, m] -> [m + 1, m + 1]."""
        result = F.pad(products, (0, 1, 0, 1))
        result[-1, :-1] = result[:-1, -1] = square - dots
        result[-1, -1] = square
        inside = F.pad(self.usable, (0, 1), value=True)
        return result.where(inside & inside[:, None], 0)

    def _products(self, centre: Tensor | None, chosen: Sequence[int] | None = None) -> Tensor:
        """The products in float32, or in float64 where float32 would overflow or vanish."""
        products = passes.gram(self.candidates, centre, chosen=chosen)
        squares = products.diagonal()
        for i in (~((squares > 1e-20) & squares.isfinite())).nonzero().flatten().tolist():
            row = self.candidates[i if chosen is None else chosen[i]]
            nothing = not bool(row.any()) if centre is None else torch.equal(row, centre)
            if not nothing and passes.all_finite(row):
                return passes.gram(self.candidates, centre, wide=True, chosen=chosen)
        return products

    def _crowded(self, products: Tensor) -> int | None:
        """A row in the middle of others that are too near each other for these products to tell apart, or None."""
        inside = self.usable.nonzero().flatten()
        near = len(inside) // 2
        if near == 0:
            return None
        distances = squared_distances(products[inside][:, inside])
        squares = products.diagonal()[inside]
        nearest, who = distances.fill_diagonal_(torch.inf).sort(dim=1)
        totals = nearest[:, :near].sum(dim=1)
        sums = (squares[:, None] + squares).gather(1, who)[:, :near].sum(dim=1)
        return None if bool((totals >= NEARLY_EQUAL * sums).all()) else int(inside[totals.argmin()])


def squared_distances(products: Tensor) -> Tensor:
    """||x_i - x_j||^2 [n, n] from <x_i - c, x_j - c>, whatever c is."""
    squares = products.diagonal()
    return (squares[:, None] + squares - 2 * products).clamp_(min=0).fill_diagonal_(0)


def lengths(mix: Tensor, products: Tensor) -> tuple[Tensor, Tensor]:
    """The squared length of each mixture by [n, k] weights, and the sum of the lengths of its parts: [n] each."""
    return ((mix @ products) * mix).sum(dim=1), mix.abs() @ products.diagonal().clamp(min=0).sqrt()


class Formed(NamedTuple):
    """What rows were formed from."""

    received: Geometry
    shares: Tensor  # [n, m]: the weights of the candidates in each row
