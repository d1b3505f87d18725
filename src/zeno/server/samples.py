"""Samples of the server's own, as many as are asked for, whatever the batches are that they come in."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from zeno.problem.dataset import Batch


class Samples:
    """Takes from batches (inputs [n, ...], targets [n, ...]), each sample once, and begins again when they end."""

    def __init__(self, batches: Iterable[Sequence[Tensor]], device: torch.device) -> None:
        self._batches = batches
        self._device = device
        self._coming: Iterator[Sequence[Tensor]] = iter(())
        self._left: Batch | None = None  # what was not asked for yet

    def take(self, size: int) -> Batch:
        """The next so many samples."""
        taken: list[Batch] = []
        while size > 0:
            batch = self._left or self._next()
            now, later = (Batch(*(part[where] for part in batch)) for where in (slice(size), slice(size, None)))
            self._left = later if len(later.targets) else None
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
        for begun_again in (False, True):
            if begun_again:
                self._coming = iter(self._batches)
            for batch in self._coming:
                return self._checked(batch)
        raise ValueError(
            "A Server needs data that can be begun again when it ends, with at least one batch. "
            f"Found {type(self._batches).__name__} that gives none. Pass a DataLoader or a list of batches."
        )

    def _checked(self, batch: object) -> Batch:
        pair = list(batch) if isinstance(batch, list | tuple) else [batch]
        if len(pair) != 2 or not all(isinstance(part, Tensor) and part.ndim for part in pair):
            found = ", ".join(
                f"a {type(p).__name__}" if not isinstance(p, Tensor) else f"{list(p.shape)}" for p in pair
            )
            raise ValueError(
                f"A Server needs data in batches of two tensors: (inputs, targets). Found ({found}). "
                "Map them to two tensors first, with a row for each sample."
            )
        inputs, targets = (torch.as_tensor(part, device=self._device) for part in pair)
        if len(inputs) != len(targets) or len(inputs) == 0:
            raise ValueError(
                "A Server needs data with one target for each input, at least one. "
                f"Found {len(inputs)} inputs and {len(targets)} targets in a batch."
            )
        return Batch(inputs, targets)
