"""Short sketches of long vectors, which keep their inner products: E<sketch(a), sketch(b)> = <a, b>.

Every coordinate gets a random sign, and then every k-th number is added up. The error of an inner product is about
||a|| ||b|| / sqrt(k). The signs of different coordinates must be independent: the gradient of a dense layer is an outer
product, whose rows are multiples of one another, so signs that repeat would let errors add up.

Shapes: n rows, d parameters, w of them in a part, k numbers in a sketch.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from zeno.rules.linalg.passes import working_dtype

STRETCH = 131_072  # coordinates, about, that take their signs from one place in the table
PLACES = 2**18  # in the table, which stays in cache with its 1.6 MB


def sketch(rows: Tensor, k: int, seed: int) -> Tensor:
    """The sketches of rows [n, d] -> [n, k], in one pass; a row that is not finite has a sketch that is not."""
    found = Sketch(len(rows), k, seed, rows)
    found.add(rows, 0)
    return found.sums()


class Sketch:
    """The sketches of n vectors that arrive in parts, in any order."""

    def __init__(self, n: int, k: int, seed: int, like: Tensor) -> None:
        dtype = working_dtype(like.dtype)
        stretch = k * max(1, STRETCH // k)
        self.signs = signs_of(seed, stretch, dtype, like.device)
        self.k = k
        # Of one vector several sums fit the cache, and longer operations are faster.
        self._sums = torch.zeros(n, stretch if n == 1 else k, dtype=dtype, device=like.device)

    def add(self, part: Tensor, start: int, then_scale: float = 1.0) -> None:
        """Adds the coordinates from `start` on of each vector [n, w].

        Then multiplies them by a number in place, which costs little while they are in the cache.
        """
        width, stop = self._sums.shape[1], start + part.shape[1]
        for at in (start, *range(start - start % width + width, stop, width)):
            end = min(stop, at - at % width + width)
            piece = part[:, at - start : end - start]
            sums = self._sums[:, at % width : at % width + end - at]
            sums.addcmul_(piece.to(self._sums.dtype), self.signs.at(at, end))
            if then_scale != 1:
                piece.mul_(then_scale)

    def sums(self) -> Tensor:
        """[n, k]"""
        n, width = self._sums.shape
        return self._sums if width == self.k else self._sums.view(n, -1, self.k).sum(dim=1)


class Signs:
    """Random signs for the coordinates of vectors of any length, the same on every device.

    As many as coordinates would take as long to read as the vectors. So each stretch of coordinates has those that
    begin at a place in a table, drawn at random for each: two coordinates that meet in a sum have different ones.
    """

    def __init__(self, seed: int, stretch: int, dtype: torch.dtype, device: torch.device) -> None:
        self.stretch = stretch
        self._random = np.random.Generator(np.random.Philox(seed))
        bits = np.unpackbits(np.frombuffer(self._random.bytes((PLACES + stretch + 7) // 8), np.uint8))
        self._table = torch.from_numpy(bits).to(device, dtype).mul_(2).sub_(1)
        self._places: list[int] = []

    def at(self, start: int, stop: int) -> Tensor:
        """1 or -1 for each coordinate [w] from start to stop, which are in one stretch."""
        stretch = start // self.stretch
        if len(self._places) <= stretch:  # the next ones; the same however many are drawn at once
            self._places += self._random.integers(PLACES, size=stretch + 1 - len(self._places)).tolist()
        first = self._places[stretch] + start % self.stretch
        return self._table[first : first + stop - start]


@lru_cache(maxsize=4)
def signs_of(seed: int, stretch: int, dtype: torch.dtype, device: torch.device) -> Signs:
    return Signs(seed, stretch, dtype, device)
