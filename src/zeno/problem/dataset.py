"""Datasets, who has which samples of them, and the batches that are drawn.

Every random draw of a run comes from `generator(seed, role, worker, step)`. So no draw depends on what was
drawn before it: another rule sees the same batches, and a run that is resumed or spread over processes sees
the same ones again.

Shapes: n samples, m workers.
"""

import math
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor


def generator(seed: int, role: str, worker: int = 0, step: int = 0) -> np.random.Generator:
    """The one source of randomness: independent streams for each (seed, role, worker, step)."""
    return np.random.default_rng([seed, zlib.crc32(role.encode()), worker, step])


class Batch(NamedTuple):
    """Samples with their targets, as a model takes them."""

    inputs: Tensor  # [n, ...]
    targets: Tensor  # [n, ...]


@dataclass(frozen=True, repr=False, eq=False)
class Dataset:
    """Samples as they are stored; pictures stay bytes and become numbers by the batch."""

    inputs: Tensor  # [n, ...], uint8 for pictures
    targets: Tensor  # [n, ...]
    classes: int | None = None  # None: the targets are not class labels
    scale: float = 1 / 255  # of bytes only

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise ValueError(
                f"A Dataset needs one target for each input. Found {len(self.inputs)} inputs "
                f"and {len(self.targets)} targets."
            )

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        return f"Dataset({len(self)} samples of shape {list(self.inputs.shape[1:])}, classes={self.classes})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as arrays, which processes of one machine can share; of a tensor each would have a copy."""
        return _from_arrays, (_as_array(self.inputs), _as_array(self.targets), self.classes, self.scale)

    def to(self, device: torch.device) -> "Dataset":
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))

    def batch(self, indices: Tensor) -> Batch:
        inputs = self.inputs[indices]
        if inputs.dtype == torch.uint8:
            inputs = inputs.float() * self.scale
        return Batch(inputs, self.targets[indices])


def as_tensor(array: np.ndarray) -> Tensor:
    """A view of an array that may be read-only: never write to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _as_array(tensor: Tensor) -> np.ndarray | Tensor:
    try:
        return tensor.numpy()
    except (TypeError, RuntimeError):  # of a type that numpy lacks, or on a GPU
        return tensor


def _from_arrays(
    inputs: np.ndarray | Tensor, targets: np.ndarray | Tensor, classes: int | None, scale: float
) -> Dataset:
    first, second = (one if isinstance(one, Tensor) else as_tensor(one) for one in (inputs, targets))
    return Dataset(first, second, classes, scale)


def draw(indices: Tensor, size: int, rng: np.random.Generator) -> Tensor:
    """`size` of the indices, independently and with replacement, as the theory has it."""
    return indices[torch.from_numpy(rng.integers(len(indices), size=size))]


def hold_out(num_samples: int, share: float, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """(the server's indices, the workers' indices); with share 0 the server samples from everything."""
    everything = torch.arange(num_samples)
    if share == 0:
        return everything, everything
    shuffled = torch.from_numpy(rng.permutation(num_samples))
    num_server = max(1, round(share * num_samples))
    return shuffled[:num_server].sort().values, shuffled[num_server:].sort().values


class Split(Protocol):
    """Who has which samples: positions [n] in `targets` for each of m workers."""

    def __call__(self, targets: Tensor, workers: int, rng: np.random.Generator) -> Sequence[Tensor]: ...


@dataclass(frozen=True)
class IID:
    """Every worker samples everything."""

    def __call__(self, targets: Tensor, workers: int, rng: np.random.Generator) -> list[Tensor]:
        return [torch.arange(len(targets))] * workers


@dataclass(frozen=True)
class Disjoint:
    """Every worker has samples of its own, at random: the paper's disjoint local data."""

    def __call__(self, targets: Tensor, workers: int, rng: np.random.Generator) -> list[Tensor]:
        return _deal(torch.from_numpy(rng.permutation(len(targets))), workers)


@dataclass(frozen=True)
class ByLabel:
    """Every worker has samples of its own, sorted by label: most see one or two labels only."""

    def __call__(self, targets: Tensor, workers: int, rng: np.random.Generator) -> list[Tensor]:
        shuffled = torch.from_numpy(rng.permutation(len(targets)))  # so that each label's samples are dealt at random
        by_label = shuffled[_labels(targets, self)[shuffled].argsort(stable=True)]
        return [by_label[shard] for shard in _deal(torch.arange(len(targets)), workers)]


@dataclass(frozen=True)
class Dirichlet:
    """Every worker has samples of its own, each label dealt out by a Dirichlet(alpha) draw: small alpha, more skew."""

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
    """A worker that the draw left with nothing gets one sample of whoever has most."""
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
"""Splits by the names that the command line and TOML files have for them."""
