"""Short sketches of long vectors, which keep their inner products: E<sketch(a), sketch(b)> = <a, b>.

Every coordinate gets a random sign, and then every k-th number is added up. The error of an inner product is about
||a|| ||b|| / sqrt(k). The signs of different coordinates must be independent: the gradient of a dense layer is an outer
product, whose rows are multiples of one another, so signs that repeat would let errors add up.

Shapes: n rows, d parameters, k numbers in a sketch.
"""

import numpy as np
import torch
from torch import Tensor

from zeno.rules.linalg.passes import column_slices, working_dtype


def sketch(rows: Tensor, k: int, seed: int) -> Tensor:
    """The sketches of rows [n, d] -> [n, k], in one pass; a row that is not finite has a sketch that is not."""
    dtype = working_dtype(rows.dtype)
    total = torch.zeros(len(rows), k, dtype=dtype, device=rows.device)
    signs = Signs(seed)
    for columns in column_slices(rows.shape[1], k):
        piece = rows[:, columns].to(dtype)
        total[:, : piece.shape[1]].addcmul_(piece, signs.next(piece.shape[1]).to(piece))
    return total


class Signs:
    """A stream of random signs, the same on every device."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.Philox(seed)

    def next(self, num: int) -> Tensor:
        """The next signs, 1 or -1 -> [num] in float32."""
        words = self._random.random_raw((num + 63) // 64)
        bits = np.unpackbits(words.view(np.uint8))[:num]
        return torch.from_numpy(bits).to(torch.float32).mul_(2).sub_(1)
