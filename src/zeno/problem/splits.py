"""How the samples of a dataset are split among workers.

Shapes: n samples, m workers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class Split(Protocol):
    """The samples of each worker: for each of m workers, positions in `targets` [n]."""

    def __call__(self, targets: Tensor, workers: int, rng: np.random.Generator) -> Sequence[Tensor]: ...


@dataclass(frozen=True)
class IID:
    """Every worker samples from all data."""

    def __call__(self, targets: Tensor, workers: int, rng: np.random.Generator) -> list[Tensor]:
        return [torch.arange(len(targets))] * workers


@dataclass(frozen=True)
class Disjoint:
    """Each worker has its own random samples: the paper's disjoint local data."""

    def __call__(self, targets: Tensor, workers: int, rng: np.random.Generator) -> list[Tensor]:
        return _deal(torch.from_numpy(rng.permutation(len(targets))), workers)


@dataclass(frozen=True)
class ByLabel:
    """Each worker has its own samples, sorted by label: most workers see one or two labels only."""

    def __call__(self, targets: Tensor, workers: int, rng: np.random.Generator) -> list[Tensor]:
        shuffled = torch.from_numpy(rng.permutation(len(targets)))  # each label's samples are dealt at random
        by_label = shuffled[_labels(targets, self)[shuffled].argsort(stable=True)]
        return [by_label[shard] for shard in _deal(torch.arange(len(targets)), workers)]


@dataclass(frozen=True)
class Dirichlet:
    """Each worker has its own samples, each label split by a Dirichlet(alpha) draw: smaller alpha, more skew."""

    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ValueError(f"Dirichlet needs alpha as a finite number above 0. Found alpha={self.alpha!r}.")

    def __call__(self, targets: Tensor, workers: int, rng: np.random.Generator) -> list[Tensor]:
        labels = _labels(targets, self)
        shards: list[list[Tensor]] = [[] for _ in range(workers)]
        for label in labels.unique():
            indices = (labels == label).nonzero().flatten()
            indices = indices[torch.from_numpy(rng.permutation(len(indices)))]
            ends = np.round(rng.dirichlet([self.alpha] * workers).cumsum() * len(indices)).astype(int)[:-1]
            for shard, part in zip(shards, indices.tensor_split(ends.tolist()), strict=True):
                shard.append(part)
        return _none_empty([torch.cat(parts).sort().values for parts in shards])


def _deal(indices: Tensor, workers: int) -> list[Tensor]:
    return [part.sort().values for part in indices.tensor_split(workers)]


def _none_empty(shards: list[Tensor]) -> list[Tensor]:
    """A worker without samples gets one from the worker that has most."""
    for i, shard in enumerate(shards):
        if len(shard) == 0:
            richest = max(range(len(shards)), key=lambda j: len(shards[j]))
            shards[i], shards[richest] = shards[richest][:1], shards[richest][1:]
    return shards


def _labels(targets: Tensor, split: Split) -> Tensor:
    if targets.ndim != 1 or targets.is_floating_point():
        raise ValueError(
            f"{split} needs class labels. Found targets of {targets.dtype}, shape {list(targets.shape)}. "
            "Use the split iid or disjoint."
        )
    return targets


SPLITS: dict[str, type[Split]] = {"iid": IID, "disjoint": Disjoint, "by_label": ByLabel, "dirichlet": Dirichlet}
"""Splits by their names on the command line and in TOML files."""
