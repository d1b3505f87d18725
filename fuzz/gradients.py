"""Honest gradients, and what faulty workers send among them."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def honest(rng: np.random.Generator, m: int, d: int, dtype: torch.dtype) -> Tensor:
    """[m, d] around a common mean, of any usual size and spread."""
    mean, noise = rng.standard_normal(d), rng.standard_normal((m, d))
    size = 10.0 ** rng.uniform(-2, 2)
    return torch.from_numpy(size * (mean + rng.choice([0.0, 0.05, 1.0]) * noise)).to(dtype)


def _sizes(rng: np.random.Generator, dtype: torch.dtype) -> float:
    """From subnormal to the largest number."""
    info = torch.finfo(dtype)
    low, high = np.log10(info.smallest_normal), np.log10(info.max)
    return float(10.0 ** rng.uniform(low - 2, high - 0.1))


def _noise(rng: np.random.Generator, good: Tensor, q: int) -> Tensor:
    return torch.from_numpy(rng.standard_normal((q, good.shape[1])))


Hostile = Callable[[np.random.Generator, Tensor, int], Tensor]  # good [n, d] -> [q, d] in float64


def scaled(rng: np.random.Generator, good: Tensor, q: int) -> Tensor:
    size = rng.choice([-1e30, -100, -10, -1, 0, 1e-5, 1e5, 1e30, _sizes(rng, good.dtype)])
    return float(size) * good.double().mean(dim=0).repeat(q, 1)


def random_of_any_size(rng: np.random.Generator, good: Tensor, q: int) -> Tensor:
    return torch.stack([_sizes(rng, good.dtype) * row for row in _noise(rng, good, q)])


def cancelling(rng: np.random.Generator, good: Tensor, q: int) -> Tensor:
    """H and -H + something small, in turn."""
    large = float(rng.choice([1e6, 1e12, _sizes(rng, good.dtype)])) * _noise(rng, good, 1)
    signs = torch.tensor([(-1.0) ** i for i in range(q)]).double()[:, None]
    return signs * large + float(10.0 ** rng.uniform(-3, 8)) * _noise(rng, good, q)


def one_coordinate(rng: np.random.Generator, good: Tensor, q: int) -> Tensor:
    sent = good.double().mean(dim=0).repeat(q, 1)
    values = [np.nan, np.inf, -np.inf, torch.finfo(good.dtype).max, 1e-300, _sizes(rng, good.dtype)]
    sent[:, rng.integers(good.shape[1])] = float(rng.choice(values))
    return sent


def near_the_mean(rng: np.random.Generator, good: Tensor, q: int) -> Tensor:
    """mean - z * sigma, copies or with little noise."""
    sigma = good.double().std(dim=0, correction=0)
    sent = (good.double().mean(dim=0) - float(rng.uniform(0, 4)) * sigma).repeat(q, 1)
    return sent + float(rng.choice([0, 1e-6])) * _noise(rng, good, q)


def unusable(rng: np.random.Generator, good: Tensor, q: int) -> Tensor:
    return torch.full((q, good.shape[1]), float(rng.choice([np.nan, np.inf, -np.inf])), dtype=torch.float64)


def near_the_limit(rng: np.random.Generator, good: Tensor, q: int) -> Tensor:
    """Where squares overflow, and where sums do."""
    largest = torch.finfo(good.dtype).max
    size = rng.choice([largest**0.5, 0.1 * largest**0.5, 10 * largest**0.5, largest, largest / good.shape[1]])
    signs = _noise(rng, good, 1 if rng.random() < 0.5 else q).sign()
    return float(size) * signs.expand(q, -1)


def triangles(rng: np.random.Generator, good: Tensor, q: int) -> Tensor:
    """Groups of three around the mean, each as wide as the honest ones are."""
    mean = good.double().mean(dim=0)
    width = (good.double() - mean).norm(dim=1).max()
    corners = _noise(rng, good, q)
    sent: Tensor = mean + width * corners / corners.norm(dim=1, keepdim=True)
    return sent


KINDS: tuple[Hostile, ...] = (
    scaled,
    random_of_any_size,
    cancelling,
    one_coordinate,
    near_the_mean,
    unusable,
    near_the_limit,
    triangles,
)


def hostile(rng: np.random.Generator, good: Tensor, q: int) -> Tensor:
    """[q, d] in the dtype of the honest ones: one kind, or two kinds among the workers."""
    kinds = rng.choice(len(KINDS), size=2)
    first = int(rng.integers(q + 1)) if rng.random() < 0.5 else q
    parts = [KINDS[kind](rng, good, n) for kind, n in zip(kinds, (first, q - first), strict=True) if n]
    return torch.cat(parts).to(good.dtype) if parts else good[:0]
