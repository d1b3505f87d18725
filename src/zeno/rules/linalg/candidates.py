"""The candidates as they were received, and what the rules ask of all of them: norms, distances, sums.

Shapes: m workers, d parameters.
"""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from zeno.rules.linalg import passes

NEARLY_EQUAL = 0.01  # squared distances below this share of the squared norms have lost too many digits


class Candidates:
    """m rows of d numbers, believed or not; read-only, and read as seldom as possible."""

    def __init__(self, tensor: Tensor) -> None:
        if not isinstance(tensor, Tensor):
            raise ValueError(
                f"A rule needs candidates as one tensor [workers, parameters]. Found {type(tensor).__name__}."
            )
        if tensor.ndim != 2 or 0 in tensor.shape or not tensor.is_floating_point():
            raise ValueError(
                "A rule needs candidates as one float tensor [workers, parameters], at least one of each. "
                f"Found {tensor.dtype} of shape {list(tensor.shape)}. Flatten each gradient, then torch.stack them."
            )
        self.tensor = tensor.detach()

    @cached_property
    def usable(self) -> Tensor:
        """[m] bool: the rows of which every number, and the sum of their squares in float64, is finite.

        All rows of finite float32 are; a row of float64 beyond 1e154 is as good as infinite.
        """
        # The products around the origin hold these sums already, for a rule that asked for them.
        squares = self._around_origin.diagonal() if "_around_origin" in self.__dict__ else self.squared_norms
        return squares.isfinite()

    @property
    def checked(self) -> bool:
        """Whether it is known which rows are usable, or can be told without reading them again."""
        return bool(self.__dict__.keys() & {"usable", "squared_norms", "_around_origin"})

    def trust(self) -> None:
        """All rows are usable: something was made from all of them that is finite."""
        self.usable = torch.ones(len(self.tensor), dtype=torch.bool, device=self.tensor.device)

    @cached_property
    def squared_norms(self) -> Tensor:
        """||x||^2 -> [m] in float64; not finite for a row that is not."""
        return passes.squared_norms(self.tensor)

    @cached_property
    def _around_origin(self) -> Tensor:
        return self._products(None)

    @cached_property
    def products(self) -> Tensor:
        """<x_i - c, x_j - c> -> [m + 1, m + 1] in float64, the last x being the origin; 0 for unusable rows.

        c is the origin, unless candidates nearly agree, as they do late in training: then their differences would
        be lost beside their size, and c is a row in the midst of the crowd. It never is a mean, which one huge row
        would carry away.
        """
        around_origin = products = self._around_origin
        c = None
        for _ in range(3):
            crowded = self._crowded(products)
            if crowded is None:
                break
            c = crowded
            products = self._products(self.tensor[c])
        result = products.new_zeros(len(products) + 1, len(products) + 1)
        result[:-1, :-1] = products
        if c is not None:  # the origin is at -c
            result[-1, :-1] = result[:-1, -1] = around_origin[c, c] - around_origin[c]
            result[-1, -1] = around_origin[c, c]
        inside = torch.cat([self.usable, self.usable.new_ones(1)])
        return result.where(inside & inside[:, None], 0)

    @cached_property
    def squared_distances(self) -> Tensor:
        """||x_i - x_j||^2 -> [m, m] in float64; 0 for unusable rows."""
        products = self.products[:-1, :-1]
        distances, squares = squared_distances(products), products.diagonal()
        # Crowds that c is not in the midst of: much nearer to each other than to it. Each gets a centre of its own.
        lost = (distances < NEARLY_EQUAL * (squares[:, None] + squares)).fill_diagonal_(False)
        for _ in range(len(lost)):
            centre = int(lost.sum(dim=1).argmax())
            crowd = [*lost[centre].nonzero().flatten().tolist(), centre]
            if len(crowd) == 1:
                break
            around = self._products(self.tensor[centre], crowd)
            index = torch.tensor(crowd, device=lost.device)
            distances[index[:, None], index] = squared_distances(around)
            lost[index[:, None], index] = False
        return distances

    def products_around(self, centre: Tensor | None) -> Tensor:
        """<x_i - centre, x_j - centre> -> [m, m] in float64; None: the origin."""
        return self._around_origin if centre is None else self._products(centre)

    def _products(self, centre: Tensor | None, chosen: Sequence[int] | None = None) -> Tensor:
        """The products in float32, or in float64 where float32 would overflow or vanish."""
        products = passes.gram(self.tensor, centre, chosen=chosen)
        squares = products.diagonal()
        for i in (~((squares > 1e-20) & squares.isfinite())).nonzero().flatten().tolist():
            row = self.tensor[i if chosen is None else chosen[i]]
            nothing = not bool(row.any()) if centre is None else torch.equal(row, centre)
            if not nothing and passes.all_finite(row):
                return passes.gram(self.tensor, centre, wide=True, chosen=chosen)
        return products

    def _crowded(self, products: Tensor) -> int | None:
        """A row in the midst of others too near each other for these products to tell apart; None if none are."""
        inside = self.usable.nonzero().flatten()
        near = len(inside) // 2
        if near == 0:
            return None
        distances = squared_distances(products[inside][:, inside])
        squares = products.diagonal()[inside]
        nearest, who = distances.fill_diagonal_(torch.inf).sort(dim=1)
        totals = nearest[:, :near].sum(dim=1)
        sums = (squares[:, None] + squares).gather(1, who)[:, :near].sum(dim=1)
        if bool((totals >= NEARLY_EQUAL * sums).all()):
            return None
        return int(inside[totals.argmin()])


def squared_distances(products: Tensor) -> Tensor:
    """||x_i - x_j||^2 [n, n] from <x_i - c, x_j - c>, whatever c is."""
    squares = products.diagonal()
    distances = (squares[:, None] + squares - 2 * products).clamp_(min=0)
    # Numbers beyond 1e150 are farther than float64 can say.
    return distances.nan_to_num_(torch.inf, torch.inf).fill_diagonal_(0)
