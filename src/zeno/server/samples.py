"""The server's samples, which no worker chooses: of a run, and in a user's own loop."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from zeno.problem.dataset import Batch, Dataset, draw, generator
from zeno.rules.rule import Rule


class SampleSource(Protocol):
    """Where the server's samples come from."""

    def take(self, size: int, role: str, step: int, number: int = 0) -> Batch:
        """`size` new samples for a purpose at a step; other numbers give other samples."""


@dataclass(frozen=True, eq=False)
class DatasetSamples:
    """The server's samples of a run: every draw depends on (seed, role, number, step) alone."""

    dataset: Dataset
    indices: Tensor  # which samples of the dataset are the server's
    seed: int

    def take(self, size: int, role: str, step: int, number: int = 0) -> Batch:
        return self.dataset.batch(draw(self.indices, size, generator(self.seed, role, number, step)))


class LoaderSamples:
    """Takes samples from batches (inputs [n, ...], targets [n, ...]), each once, and restarts when they end."""

    def __init__(self, batches: Iterable[Sequence[Tensor]] | None, device: torch.device, rule: Rule) -> None:
        self._batches = batches
        self._device = device
        self._rule = rule
        self._iterator: Iterator[Sequence[Tensor]] = iter(())
        self._rest: Batch | None = None  # of the last batch, not taken yet

    def take(self, size: int, role: str, step: int, number: int = 0) -> Batch:
        """The next `size` samples; what they are for makes no difference."""
        taken: list[Batch] = []
        while size > 0:
            batch = self._rest or self._next()
            now, later = (Batch(*(part[where] for part in batch)) for where in (slice(size), slice(size, None)))
            self._rest = later if len(later.targets) else None
            taken.append(now)
            size -= len(now.targets)
        if len(taken) == 1:
            return taken[0]
        try:
            return Batch(*(torch.cat(parts) for parts in zip(*taken, strict=True)))
        except RuntimeError:
            shapes = ", ".join(str(list(inputs.shape[1:])) for inputs, _ in taken)
            raise ValueError(
                f"A Server needs samples of one shape. Found inputs of {shapes} in batches. Pad all to one length."
            ) from None

    def _next(self) -> Batch:
        if self._batches is None:
            raise ValueError(f"{self._rule} needs samples on the server. Found data=None. Pass a DataLoader.")
        for restarted in (False, True):
            if restarted:
                self._iterator = iter(self._batches)
            for batch in self._iterator:
                return self._checked(batch)
        raise ValueError(
            "A Server needs data that can be iterated again when it ends, with at least one batch. "
            f"Found {type(self._batches).__name__} without any. Pass a DataLoader or a list of batches."
        )

    def _checked(self, batch: object) -> Batch:
        pair = list(batch) if isinstance(batch, list | tuple) else [batch]
        if len(pair) != 2 or not all(isinstance(part, Tensor) and part.ndim for part in pair):
            found = ", ".join(str(list(p.shape)) if isinstance(p, Tensor) else f"a {type(p).__name__}" for p in pair)
            raise ValueError(
                f"A Server needs data in batches of two tensors: (inputs, targets). Found ({found}). "
                "Map each batch to two tensors with one row per sample."
            )
        inputs, targets = (torch.as_tensor(part, device=self._device) for part in pair)
        if len(inputs) != len(targets) or len(inputs) == 0:
            raise ValueError(
                "A Server needs data with one target per input, at least one. "
                f"Found {len(inputs)} inputs and {len(targets)} targets in a batch."
            )
        return Batch(inputs, targets)
