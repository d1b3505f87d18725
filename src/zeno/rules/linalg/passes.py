"""Passes over the candidates at the speed of memory, in pieces that stay in cache.

The candidates are by far the largest data: m rows of d numbers. Each function here reads them once, allocates little,
and never touches a row that it was not asked for: 0 * NaN is NaN, so rows that are not finite have to stay out of
every product.

Shapes: n rows, d parameters.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

WIDTH = 65_536  # columns in a piece: a few rows of them fit the second-level cache
BLOCK = 8192  # columns that are summed in float32 before float64 takes over
COPIED = 4 * BLOCK  # columns in a piece that is copied: small enough to be read again from cache
LARGEST = 1e140
"""The length that a row may have. The sum of a billion squares of such lengths, and products of them, are finite."""
TINY = 2.0**-100  # weights below this, or above its inverse, are not for float32


def empty(d: int, like: Tensor) -> Tensor:
    """Memory for [d] numbers, in huge pages if numpy gets them: page faults would cost as much as the rule."""
    if like.device.type == "cpu" and like.dtype == torch.float32:
        return torch.from_numpy(np.empty(d, dtype=np.float32))
    return like.new_empty(d)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: half precision is for storage only."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def all_finite(vector: Tensor) -> bool:
    """Whether every number of [d] is finite; much faster than torch.isfinite."""
    total = vector.sum(dtype=working_dtype(vector.dtype))
    if bool(total.isfinite()):  # NaN and Inf never sum up to a finite number
        return True
    return all(bool(piece.isfinite().all()) for piece in vector.split(WIDTH))


def largest_number(vector: Tensor) -> float:
    """The largest magnitude in [d], in one pass; NaN or Inf if a number is."""
    least, most = torch.aminmax(vector.detach())
    return float(torch.maximum(-least, most))


def all_moderate(vector: Tensor) -> bool:
    """Whether every number of [d] is finite and at most `LARGEST`, as all finite float32 are."""
    return largest_number(vector) <= LARGEST  # False for NaN


def squared_norms(rows: Tensor) -> Tensor:
    """||x||^2 of each row [n, d] -> [n] in float64; finite for finite float32 numbers, whatever their size."""
    if rows.dtype == torch.float32 and rows.stride(1) == 1:
        whole = rows.shape[1] // BLOCK * BLOCK
        blocks, rest = rows[:, :whole].unflatten(1, (-1, BLOCK)), rows[:, whole:]
        norms = [torch.linalg.vector_norm(blocks, dim=2), torch.linalg.vector_norm(rest, dim=1, keepdim=True)]
        total = torch.cat(norms, dim=1).double().square().sum(dim=1)
    else:
        total = torch.full((len(rows),), torch.nan, dtype=torch.float64, device=rows.device)
    # float32 squares overflow, or vanish
    for i in (~((total > 1e-20) & total.isfinite())).nonzero().flatten().tolist():
        total[i] = torch.stack([piece.double().square().sum() for piece in rows[i].split(WIDTH)]).sum()
    return total


def dots(rows: Tensor, vector: Tensor) -> Tensor:
    """<x, vector> of each row [n, d] -> [n] in float64; one that is not finite has no effect on the others."""
    dtype = working_dtype(rows.dtype)
    total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for columns in column_slices(rows.shape[1]):
        total += rows[:, columns].to(dtype) @ vector[columns].to(dtype)
    for i in (~total.isfinite()).nonzero().flatten().tolist():  # float32 overflowed, or the row is not finite
        pieces = zip(rows[i].split(WIDTH), vector.split(WIDTH), strict=True)
        total[i] = torch.stack([a.double() @ b.double() for a, b in pieces]).sum()
    return total


def weighted_sum(candidates: Tensor, weights: Tensor) -> Tensor:
    """weights [m] @ candidates [m, d] -> [d]; rows of weight 0 are not touched."""
    involved = weights.nonzero().flatten().tolist()
    if not involved:
        return candidates.new_zeros(candidates.shape[1])
    runs, sizes = list(_runs(weights != 0)), weights[involved].abs()
    dtype = candidates.dtype
    # A weight that float32 cannot hold belongs to a huge row, or to a tiny one: 1e-42 * 1e38 is not nothing.
    if dtype == working_dtype(dtype) and float(sizes.amin()) > TINY and float(sizes.amax()) < 1 / TINY:
        first, out = weights[runs[0]], empty(candidates.shape[1], candidates)
        if len(runs) == 1 and bool((first == 1 / len(first)).all()):  # faster than a product
            torch.mean(candidates[runs[0]], dim=0, out=out)
        else:
            as_dtype = weights.to(dtype)
            torch.mv(candidates[runs[0]].T, as_dtype[runs[0]], out=out)
            for run in runs[1:]:
                out.addmv_(candidates[run].T, as_dtype[run])
        if all_finite(out):
            return out
    return _precise_sum(candidates, weights, involved)


def _precise_sum(candidates: Tensor, weights: Tensor, involved: Sequence[int]) -> Tensor:
    """The weighted sum in float64, whatever the sizes of weights and numbers."""
    out, limit = empty(candidates.shape[1], candidates), torch.finfo(candidates.dtype).max
    for columns in column_slices(len(out)):
        total = torch.zeros(columns.stop - columns.start, dtype=torch.float64, device=out.device)
        for i in involved:
            total.add_(candidates[i, columns].double(), alpha=float(weights[i]))
        out[columns] = total.clamp_(-limit, limit)
    return out


def _runs(mask: Tensor) -> Iterator[slice]:
    """The runs of True, as slices."""
    stop = 0
    for inside, run in groupby(mask.tolist()):
        start, stop = stop, stop + len(list(run))
        if inside:
            yield slice(start, stop)


def column_slices(d: int, width: int = WIDTH) -> Iterator[slice]:
    """The columns 0 to d in pieces."""
    return (slice(start, min(start + width, d)) for start in range(0, d, width))


def gram(
    candidates: Tensor, centre: Tensor | None = None, wide: bool = False, chosen: Sequence[int] | None = None
) -> Tensor:
    """<x_i - centre, x_j - centre> of all rows [m, d], or of the chosen ones -> [m, m] in float64.

    A row that is not finite makes its own row and column not finite, and no other. Products are summed in float32
    within blocks of columns and in float64 across them, or in float64 altogether where `wide`.
    """
    m, d = len(candidates) if chosen is None else len(chosen), candidates.shape[1]
    dtype = torch.float64 if wide else working_dtype(candidates.dtype)
    total = torch.zeros(m, m, dtype=torch.float64, device=candidates.device)
    in_place = centre is None and chosen is None and candidates.dtype == dtype and candidates.stride(1) == 1
    width = 64 * BLOCK if in_place else COPIED
    buffer = candidates.new_empty(0 if in_place else m * min(width, d), dtype=dtype)
    for columns in column_slices(d, width):
        piece = candidates[:, columns] if chosen is None else candidates[list(chosen), columns]
        if not in_place:
            piece = buffer[: piece.numel()].view(piece.shape).copy_(piece)  # before it is centred: it may be wider
            piece = piece if centre is None else piece.sub_(centre[columns])
        whole = piece.shape[1] // BLOCK * BLOCK
        if whole:
            _add_products(total, piece[:, :whole].unflatten(1, (-1, BLOCK)).transpose(0, 1))  # [k, m, BLOCK]
        if whole < piece.shape[1]:
            _add_products(total, piece[None, :, whole:])
    return total.tril() + total.tril(-1).T


def _add_products(total: Tensor, blocks: Tensor) -> None:
    """The lower triangle of total += sum over k of blocks[k] @ blocks[k].T, in strips of 16 columns."""
    for start in range(0, len(total), 16):
        strip = blocks[:, start : start + 16].transpose(1, 2)
        total[start:, start : start + 16] += torch.bmm(blocks[:, start:], strip).sum(dim=0, dtype=torch.float64)
