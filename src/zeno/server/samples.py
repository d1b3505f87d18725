"""The server's samples, which no worker chooses: of a run, and in a user's own loop."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from zeno.problem.dataset import Batch, Dataset, draw, generator
from zeno.problem.nested import NestedBatch, Piece, joined, read, require_rows
from zeno.rules.rule import Rule

IN_SECRET = 16  # samples that a secret is made from
IGNORED_LABEL = -100  # torch's default for cross entropy
ONE_SIDED = 10_000  # samples that may be in the same half, one after the other


class SampleSource(Protocol):
    """Where the server's samples come from."""

    def take(self, size: int, role: str, step: int, half: int | None = None) -> Batch | NestedBatch:
        """`size` new samples for a purpose at a step.

        With half 0 or 1, all are from that half of the server's samples: a sample is in the same half at every step.
        """


@dataclass(frozen=True, eq=False)
class DatasetSamples:
    """The server's samples of a run: every draw depends on (seed, role, half, step) alone."""

    dataset: Dataset
    indices: Tensor  # which samples of the dataset are the server's
    seed: int

    def secret(self) -> int:
        """A number from the seed and from samples of the server: the same run has it again, and no worker knows it."""
        some = self.dataset.batch(self.indices[:IN_SECRET])
        return int.from_bytes(_digest(*map(_bytes, some), salt=str(self.seed), size=8), "big")

    def take(self, size: int, role: str, step: int, half: int | None = None) -> Batch:
        indices = self.indices if half is None else self._halves[half]
        if len(indices) == 0:
            raise ValueError(f"The server needs two samples or more, one for each half. Found {len(self.indices)}.")
        role = role if half is None else f"{role}, half {half}"
        return self.dataset.batch(draw(indices, size, generator(self.seed, role, 0, step)))

    @cached_property
    def _halves(self) -> tuple[Tensor, Tensor]:
        # At random: every second sample of a file may be of another kind. In MNIST it is from another group of writers.
        order = torch.from_numpy(generator(self.seed, "halves").permutation(len(self.indices)))
        return self.indices[order[0::2]], self.indices[order[1::2]]


class LoaderSamples:
    """Takes samples from a user's batches, each once, and restarts when they end.

    Batches are (inputs [n, ...], targets [n, ...]), or `nested`: of any form that `zeno.problem.nested` reads.
    """

    def __init__(self, batches: Iterable[Any] | None, device: torch.device, rule: Rule, nested: bool) -> None:
        self._batches = batches
        self._device = device
        self._rule = rule
        self._nested = nested
        self._iterator: Iterator[Any] = iter(())
        self._rest: dict[int | None, list[Piece]] = {None: [], 0: [], 1: []}  # not taken yet, by half
        self._by_sample: dict[str, bool] = {}  # whether a list of plain values has one for each sample, by its name

    def take(self, size: int, role: str, step: int, half: int | None = None) -> Batch | NestedBatch:
        """The next `size` samples; what they are for makes no difference.

        The content of a sample decides which half it is in, however often and in whatever order it returns.
        """
        taken: list[Piece] = []
        while size > 0:
            if not self._rest[half]:
                self._refill(half)
            piece = self._rest[half].pop(0)
            now, later = piece.at(slice(size)), piece.at(slice(size, None))
            if later.size:
                self._rest[half].insert(0, later)
            taken.append(now)
            size -= now.size
        found = joined(taken)
        if self._nested:
            return found
        if len(found.pieces) > 1:
            kinds = [
                ", ".join(f"{leaf.dtype} {list(leaf.shape[1:])}" for leaf in piece.leaves) for piece in found.pieces
            ]
            raise ValueError(
                "A Server needs samples of one shape and dtype for a loss of (outputs, targets). Found "
                f"({') and ('.join(dict.fromkeys(kinds))}) in batches. Pad all to one length and convert them to one "
                "dtype, or pass a loss of (model, batch)."
            )
        return Batch(*found.pieces[0].leaves)

    def _refill(self, half: int | None) -> None:
        if half is None:
            return self._rest[None].append(self._next())
        seen = 0
        while not self._rest[half]:
            piece = self._rest[None].pop(0) if self._rest[None] else self._next()
            halves = halves_of(piece)
            for number in (0, 1):
                if bool((halves == number).any()):
                    self._rest[number].append(piece.at((halves == number).nonzero().flatten().to(self._device)))
            seen += piece.size
            if seen > ONE_SIDED:
                raise ValueError(
                    f"{self._rule} needs at least two different samples on the server, one for each half. Found "
                    f"{seen:,} in a row for the same half: they are copies of a few. Pass more samples."
                )
        return None

    def _next(self) -> Piece:
        assert self._batches is not None  # as `requirements.check` requires
        for restarted in (False, True):
            if restarted:
                self._iterator = iter(self._batches)
            for batch in self._iterator:
                piece = read(batch if self._nested else _pair(batch), self._device)
                self._compare_lists(piece)
                return piece
        raise ValueError(
            "A Server needs data that can be iterated again when it ends, with at least one batch. "
            f"Found {type(self._batches).__name__} without any. Pass a DataLoader or a list of batches."
        )

    def _compare_lists(self, piece: Piece) -> None:
        """Raises for a list of plain values that is as long as one batch, but not as another."""
        for name, value in [*zip(piece.names, piece.leaves, strict=True), *piece.constants.items()]:
            by_sample = name in piece.names
            if isinstance(value, list | tuple) and value and self._by_sample.setdefault(name, by_sample) != by_sample:
                raise ValueError(
                    "A Server needs lists of plain values with one for each sample in all batches, or in none. Found "
                    f"{name}, which is as long as one batch but not as another. Pass it as a tensor with one row per "
                    "sample, or leave it out of the batch: the loss can refer to it."
                )


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    """(inputs, targets); raises for any other batch."""
    pair = list(batch) if isinstance(batch, list | tuple) else [batch]
    for number, part in enumerate(pair):
        require_rows(part, f"batch[{number}]")
    if len(pair) != 2 or not all(isinstance(part, Tensor) and part.ndim for part in pair):
        found = ", ".join(str(list(p.shape)) if isinstance(p, Tensor) else f"a {type(p).__name__}" for p in pair)
        raise ValueError(
            "A Server needs batches of two tensors, (inputs, targets), for a loss of (outputs, targets). "
            f"Found ({found}). For other batches, pass a loss(model, batch), with its first parameter named `model`."
        )
    inputs, targets = pair
    if len(inputs) != len(targets) or len(inputs) == 0:
        raise ValueError(
            "A Server needs data with one target per input, at least one. "
            f"Found {len(inputs)} inputs and {len(targets)} targets in a batch."
        )
    return inputs, targets


def halves_of(piece: Piece) -> Tensor:
    """0 or 1 for each sample [n], by its content.

    Padding is not content: what an `attention_mask` leaves out, and zeros and ignored labels at the end. So a text is
    in one half, whatever length it is padded to.
    """
    named = zip(piece.names, piece.leaves, strict=True)
    masks = [leaf.cpu().bool() for name, leaf in named if name.endswith("['attention_mask']")]
    columns = [_contents(leaf, masks[0] if masks else None) for leaf in piece.leaves]
    return torch.tensor([_digest(*sample, size=1)[0] % 2 for sample in zip(*columns, strict=True)])


def _contents(leaf: Any, mask: Tensor | None) -> Iterable[bytes]:
    """What counts of each entry of a leaf [n, ...]."""
    if not isinstance(leaf, Tensor):
        return [str(entry).encode() for entry in leaf]
    leaf = leaf.detach().cpu()
    is_label = leaf.dtype.is_signed and not leaf.is_floating_point()  # in uint8, -100 would be 156
    entries: Iterable[Tensor] = leaf.masked_fill(leaf == IGNORED_LABEL, 0) if is_label else leaf
    if mask is not None and leaf.shape[: mask.ndim] == mask.shape:
        entries = [entry[kept] for entry, kept in zip(entries, mask, strict=True)]
    return [_bytes(entry).rstrip(b"\0") for entry in entries]


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()


def _digest(*contents: bytes, size: int, salt: str = "") -> bytes:
    return hashlib.blake2b(b"".join([*contents, salt.encode()]), digest_size=size).digest()
