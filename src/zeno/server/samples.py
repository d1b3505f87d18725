"""The server's samples, which no worker chooses: of a run, and in a user's own loop."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from zeno.problem.dataset import Batch, Dataset, draw, generator
from zeno.rules.rule import Rule

IN_SECRET = 16  # samples that a secret is made from
ONE_SIDED = 10_000  # samples that may be in the same half, one after the other


class SampleSource(Protocol):
    """Where the server's samples come from."""

    def take(self, size: int, role: str, step: int, number: int = 0, half: int | None = None) -> Batch:
        """`size` new samples for a purpose at a step; other numbers give other samples.

        With half 0 or 1, all are from that half of the server's samples: a sample is in the same half at every step.
        """


@dataclass(frozen=True, eq=False)
class DatasetSamples:
    """The server's samples of a run: every draw depends on (seed, role, number, step) alone."""

    dataset: Dataset
    indices: Tensor  # which samples of the dataset are the server's
    seed: int

    def secret(self) -> int:
        """A number from the seed and from samples of the server: the same run has it again, and no worker knows it."""
        some = self.dataset.batch(self.indices[:IN_SECRET])
        return int.from_bytes(_digest(*some, salt=str(self.seed), size=8), "big")

    def take(self, size: int, role: str, step: int, number: int = 0, half: int | None = None) -> Batch:
        indices = self.indices if half is None else self._halves[half]
        if len(indices) == 0:
            raise ValueError(f"The server needs two samples or more, one for each half. Found {len(self.indices)}.")
        role = role if half is None else f"{role}, half {half}"
        return self.dataset.batch(draw(indices, size, generator(self.seed, role, number, step)))

    @cached_property
    def _halves(self) -> tuple[Tensor, Tensor]:
        # At random: every second sample of a file may be of another kind. In MNIST it is from another group of writers.
        order = torch.from_numpy(generator(self.seed, "halves").permutation(len(self.indices)))
        return self.indices[order[0::2]], self.indices[order[1::2]]


class LoaderSamples:
    """Takes samples from batches (inputs [n, ...], targets [n, ...]), each once, and restarts when they end."""

    def __init__(self, batches: Iterable[Sequence[Tensor]] | None, device: torch.device, rule: Rule) -> None:
        self._batches = batches
        self._device = device
        self._rule = rule
        self._iterator: Iterator[Sequence[Tensor]] = iter(())
        self._rest: dict[int | None, list[Batch]] = {None: [], 0: [], 1: []}  # not taken yet, by half

    def take(self, size: int, role: str, step: int, number: int = 0, half: int | None = None) -> Batch:
        """The next `size` samples; what they are for makes no difference.

        The content of a sample decides which half it is in, however often and in whatever order it returns.
        """
        taken: list[Batch] = []
        while size > 0:
            if not self._rest[half]:
                self._refill(half)
            batch = self._rest[half].pop(0)
            now, later = (Batch(*(part[where] for part in batch)) for where in (slice(size), slice(size, None)))
            if len(later.targets):
                self._rest[half].insert(0, later)
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

    def _refill(self, half: int | None) -> None:
        if half is None:
            return self._rest[None].append(self._next())
        seen = 0
        while not self._rest[half]:
            batch = self._rest[None].pop(0) if self._rest[None] else self._next()
            halves = torch.tensor([half_of(*sample) for sample in zip(*batch, strict=True)], device=self._device)
            for number in (0, 1):
                if bool((halves == number).any()):
                    self._rest[number].append(Batch(*(part[halves == number] for part in batch)))
            seen += len(halves)
            if seen > ONE_SIDED:
                raise ValueError(f"{self._rule} needs different samples on the server. Found {seen} copies of a few.")
        return None

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


def half_of(*parts: Tensor) -> int:
    """0 or 1, by the content of a sample."""
    return _digest(*parts, size=1)[0] % 2


def _digest(*parts: Tensor, size: int, salt: str = "") -> bytes:
    content = [part.detach().reshape(-1).view(torch.uint8).cpu().numpy().tobytes() for part in parts]
    return hashlib.blake2b(b"".join([*content, salt.encode()]), digest_size=size).digest()
