"""Datasets, and the batches that are drawn from them.

Every random draw of a run comes from `generator(seed, role, worker, step)`. So no draw depends on earlier draws:
another rule sees the same batches, and so does a run that is resumed or spread over processes.

Shapes: n samples.
"""

import warnings
import zlib
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


def generator(seed: int, role: str, worker: int = 0, step: int = 0) -> np.random.Generator:
    """The one source of randomness: an independent stream for each (seed, role, worker, step)."""
    return np.random.default_rng([seed, zlib.crc32(role.encode()), worker, step])


class Batch(NamedTuple):
    """Samples with their targets, as a model takes them."""

    inputs: Tensor  # [n, ...]
    targets: Tensor  # [n, ...]

    @property
    def size(self) -> int:  # n
        return len(self.targets)

    def cut(self, where: slice) -> "Batch":
        """The samples in a slice."""
        return Batch(self.inputs[where], self.targets[where])


@dataclass(frozen=True, repr=False, eq=False)
class Dataset:
    """Samples as they are stored; images stay bytes and are converted to float by the batch."""

    inputs: Tensor  # [n, ...], uint8 for images
    targets: Tensor  # [n, ...]
    classes: int | None = None  # None: the targets are not class labels
    scale: float = 1 / 255  # of uint8 inputs only

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise ValueError(
                f"A Dataset needs one target per input. Found {len(self.inputs)} inputs "
                f"and {len(self.targets)} targets."
            )

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        return f"Dataset({len(self)} samples of shape {list(self.inputs.shape[1:])}, classes={self.classes})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as arrays, which processes of one machine can share; a tensor would be copied to each."""
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
    except (TypeError, RuntimeError):  # a dtype that numpy lacks, or on a GPU
        return tensor


def _from_arrays(
    inputs: np.ndarray | Tensor, targets: np.ndarray | Tensor, classes: int | None, scale: float
) -> Dataset:
    first, second = (one if isinstance(one, Tensor) else as_tensor(one) for one in (inputs, targets))
    return Dataset(first, second, classes, scale)


def draw(indices: Tensor, size: int, rng: np.random.Generator) -> Tensor:
    """`size` of the indices, drawn independently and with replacement, as in the theory."""
    return indices[torch.from_numpy(rng.integers(len(indices), size=size))]


def hold_out(num_samples: int, share: float, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """(the server's indices, the workers' indices); with share 0 the server samples from everything."""
    everything = torch.arange(num_samples)
    if share == 0:
        return everything, everything
    shuffled = torch.from_numpy(rng.permutation(num_samples))
    num_server = max(1, round(share * num_samples))
    return shuffled[:num_server].sort().values, shuffled[num_server:].sort().values
