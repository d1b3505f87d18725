"""Order statistics of each column, by a sorting network: minima and maxima of whole rows, and no branches.

Batcher's merge exchange sorts n values with a fixed sequence of comparators. Those that no wanted order statistic
depends on are left out, and where only one side of a comparator is wanted, only that side is computed. The same
sequence runs in two forms: here, row by row over a few columns that stay in cache; and fused by the compiler into one
pass over memory (see `kernels`).

Shapes: n rows, c columns.
"""

from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import NamedTuple

import torch
from torch import Tensor


class Columns(NamedTuple):
    """A formula of the n values in each column, by name, and how many values it drops."""

    formula: str
    trim: int = 0


class Comparator(NamedTuple):
    """Puts the smaller of two values at `low` and the larger one at `high`, as far as they are wanted."""

    low: int
    high: int
    wants_low: bool
    wants_high: bool


Compare = Callable[[Tensor, Tensor, Comparator], tuple[Tensor, Tensor]]


@cache
def comparators(n: int, wanted: tuple[int, ...]) -> tuple[Comparator, ...]:
    """The network that puts the wanted order statistics (0: the least) of n values in their places."""
    needed, chosen = set(wanted), []
    for low, high in reversed(_merge_exchange(n)):
        if low in needed or high in needed:
            chosen.append(Comparator(low, high, low in needed, high in needed))
            needed |= {low, high}
    return tuple(reversed(chosen))


def _merge_exchange(n: int) -> list[tuple[int, int]]:
    """Batcher's merge exchange (Knuth, The Art of Computer Programming, volume 3, algorithm 5.2.2M)."""
    pairs = []
    powers = [1 << bit for bit in reversed(range(max(1, (n - 1).bit_length())))]
    for number, p in enumerate(powers):
        for distance, r in [(p, 0), *((q - p, p) for q in powers[:number])]:
            pairs += [(i, i + distance) for i in range(n - distance) if i & p == r]
    return pairs


def apply(columns: Columns, rows: Sequence[Tensor], compare: Compare) -> Tensor:
    """The formula of every column [c] of n rows; NaN where a column holds a number that is not finite."""
    wanted, formula = FORMULAS[columns.formula]
    values = list(rows)
    network = comparators(len(rows), tuple(wanted(len(rows), columns.trim)))
    for comparator in network:
        low, high = comparator.low, comparator.high
        values[low], values[high] = compare(values[low], values[high], comparator)
    result = formula(values, columns.trim)
    return result + _guard(rows) if network else result  # a plain sum is not finite by itself


def _guard(rows: Sequence[Tensor]) -> Tensor:
    """0, or NaN where a number is not finite: an infinity could hide among the values that are trimmed."""
    share = 0.5 ** len(rows).bit_length()  # keeps the sum finite as long as the numbers are
    total = rows[0] * share
    for row in rows[1:]:
        total.add_(row, alpha=share)
    return total.abs() * 0


def evaluate(columns: Columns, block: Tensor) -> Tensor:
    """The formula of every column of a block [n, c], without a compiler."""
    return apply(columns, list(block), _Buffers(block))


class _Buffers:
    """Compares in n + 1 buffers: the block must not be written to, and new memory for each step would be slow."""

    def __init__(self, block: Tensor) -> None:
        self.spare = list(block.new_empty(len(block) + 1, block.shape[1]))
        self.own = {id(buffer) for buffer in self.spare}

    def __call__(self, a: Tensor, b: Tensor, comparator: Comparator) -> tuple[Tensor, Tensor]:
        low, high = a, b
        if comparator.wants_low:
            low = torch.minimum(a, b, out=self.spare.pop())
        if comparator.wants_high:
            high = torch.maximum(a, b, out=b if id(b) in self.own else self.spare.pop())
        if comparator.wants_low and id(a) in self.own:
            self.spare.append(a)
        return low, high


def _mean(values: Sequence[Tensor]) -> Tensor:
    """Weighted before summing, so that huge numbers do not overflow, and clamped in case they are rounded up."""
    weight, limit = 1 / len(values), torch.finfo(values[0].dtype).max
    return reduce(torch.add, [value * weight for value in values]).clamp(-limit, limit)


def _plain_mean(values: Sequence[Tensor]) -> Tensor:
    """Summed before weighting: as fast as memory, but not finite where the sum overflows."""
    total = values[0] * 1
    for value in values[1:]:
        total += value
    return total * (1 / len(values))


def _median(values: Sequence[Tensor]) -> Tensor:
    return values[(len(values) - 1) // 2] / 2 + values[len(values) // 2] / 2


def _trimmed_mean(values: Sequence[Tensor], trim: int) -> Tensor:
    return _mean(values[trim : len(values) - trim])


def _nearest(values: Sequence[Tensor], centre: Tensor, trim: int) -> Tensor:
    """Mean of the n - trim values nearest the centre, the smaller one winning a tie.

    In sorted order they are a window of n - trim neighbours: of values that are n - trim apart, it holds exactly one.
    """

    def nearer(a: Tensor, b: Tensor) -> Tensor:  # a <= b; halves, because a + b may overflow
        return torch.where(a * 0.5 + b * 0.5 < centre, b, a)

    num = len(values) - trim
    return _mean([reduce(nearer, values[start::num]) for start in range(num)])


FORMULAS: dict[str, tuple[Callable[[int, int], Sequence[int]], Callable[[Sequence[Tensor], int], Tensor]]] = {
    "mean": (lambda n, trim: (), lambda x, trim: _plain_mean(x)),
    "median": (lambda n, trim: ((n - 1) // 2, n // 2), lambda x, trim: _median(x)),
    "trimmed_mean": (lambda n, trim: range(trim, n - trim), _trimmed_mean),
    "nearest_median": (lambda n, trim: range(n), lambda x, trim: _nearest(x, _median(x), trim)),
    "nearest_trimmed_mean": (lambda n, trim: range(n), lambda x, trim: _nearest(x, _trimmed_mean(x, trim), trim)),
}
"""Name -> the order statistics that it needs of n values, and the formula of the values in their places."""
