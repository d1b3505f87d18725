"""Batches in a user's own form: tensors in dicts, lists, tuples and dataclasses, nested at will.

The first axis of every tensor is the samples, and a list or tuple of as many plain values has one for each sample too.
Everything else (None, numbers, texts, tensors without an axis) belongs to the batch as a whole.

Shapes: n samples.
"""

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

PLAIN = (str, bytes, int, float, complex, type(None))
MOST_NAMED = 6  # tensors in an error


class Slot:
    """Stands where a leaf was taken out of a batch."""


SLOT = Slot()


@dataclass(frozen=True, eq=False)
class Piece:
    """Samples of one batch: its leaves, which have an entry for each sample, and the batch without them."""

    leaves: tuple[Any, ...]  # [n, ...] each: tensors, or lists and tuples of plain values
    names: tuple[str, ...]  # of the leaves
    frame: object  # the batch, with SLOT in place of each leaf
    constants: Mapping[str, Any]  # what belongs to the batch as a whole, by name

    @property
    def size(self) -> int:  # n
        return len(self.leaves[0])

    def batch(self) -> Any:
        """The samples in the form of the user's batch."""
        leaves = iter(self.leaves)
        return _mapped(self.frame, lambda leaf, _: next(leaves) if leaf is SLOT else leaf)

    def at(self, where: slice | Tensor) -> "Piece":
        """The samples in a slice, or those at indices."""
        return replace(self, leaves=tuple(_entries(leaf, where) for leaf in self.leaves))


@dataclass(frozen=True, eq=False)
class NestedBatch:
    """Samples of one or several batches. Each piece is evaluated by itself, and counts by its number of samples."""

    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:  # n
        return sum(piece.size for piece in self.pieces)

    def cut(self, where: slice) -> "NestedBatch":
        """The samples in a slice."""
        start, stop, _ = where.indices(self.size)
        found, before = [], 0
        for piece in self.pieces:
            found.append(piece.at(slice(max(0, start - before), max(0, stop - before))))
            before += piece.size
        return NestedBatch(tuple(piece for piece in found if piece.size))


def read(batch: object, device: torch.device) -> Piece:
    """A user's batch on the device; raises if it is not clear how many samples it has."""
    tensors: dict[str, Tensor] = {}
    _mapped(batch, lambda leaf, name: tensors.update({name: leaf} if _has_axis(leaf) else {}))
    sizes = {len(tensor) for tensor in tensors.values()}
    if len(sizes) != 1 or 0 in sizes:
        found = [f"{name} of shape {list(tensor.shape)}" for name, tensor in tensors.items()]
        found[MOST_NAMED:] = [f"{len(found) - MOST_NAMED} more"] if len(found) > MOST_NAMED else []
        raise ValueError(
            "A Server needs batches in which every tensor has one row per sample, and at least one row. "
            f"Found {', '.join(found) or 'no tensor with rows'}. "
            "Keep tensors without samples out of the batch: the loss can refer to them."
        )
    [size] = sizes
    leaves: dict[str, Any] = {}
    constants: dict[str, Any] = {}

    def take_out(leaf: Any, name: str) -> Any:
        leaf = leaf.to(device) if isinstance(leaf, Tensor) else leaf
        if _has_axis(leaf) or (isinstance(leaf, list | tuple) and len(leaf) == size):
            leaves[name] = leaf
            return SLOT
        constants[name] = leaf
        return leaf

    frame = _mapped(batch, take_out)
    return Piece(tuple(leaves.values()), tuple(leaves), frame, constants)


def joined(pieces: Iterable[Piece]) -> NestedBatch:
    """The samples of all pieces, in order. Neighbours become one piece if all but their samples is the same."""
    groups: list[list[Piece]] = []
    for piece in pieces:
        if groups and _fit(groups[-1][0], piece):
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return NestedBatch(tuple(_as_one(group) for group in groups))


def _fit(one: Piece, other: Piece) -> bool:
    return (
        one.names == other.names
        and one.constants == other.constants
        and all(_shape(a) == _shape(b) for a, b in zip(one.leaves, other.leaves, strict=True))
    )


def _shape(leaf: Any) -> object:
    return (leaf.shape[1:], leaf.dtype) if isinstance(leaf, Tensor) else type(leaf)


def _as_one(group: list[Piece]) -> Piece:
    if len(group) == 1:
        return group[0]
    columns = zip(*(piece.leaves for piece in group), strict=True)
    leaves = (torch.cat(c) if isinstance(c[0], Tensor) else type(c[0])(itertools.chain(*c)) for c in columns)
    return replace(group[0], leaves=tuple(leaves))


def _entries(leaf: Any, where: slice | Tensor) -> Any:
    if isinstance(leaf, Tensor) or isinstance(where, slice):
        return leaf[where]
    return type(leaf)(leaf[i] for i in where.tolist())


def _has_axis(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0


def require_rows(value: object, name: str) -> None:
    """Raises for what is made of tensors and cannot be cut into samples."""
    if isinstance(value, PackedSequence):
        found, advice = "PackedSequence", "Pad it, and pass the lengths."
    elif isinstance(value, Tensor) and value.is_nested:
        found, advice = "a nested tensor", "Pad it, and pass the lengths."
    elif isinstance(value, Tensor) and value.layout != torch.strided:
        found, advice = f"a tensor of layout {value.layout}", "Pass what its to_dense() returns."
    else:
        return
    raise ValueError(f"A Server needs batches of tensors that can be cut. Found {found} as {name}. {advice}")


def _mapped(value: Any, change: Callable[[Any, str], Any], name: str = "batch") -> Any:
    """The same form with `change(leaf, name)` for each leaf: a tensor, a plain value, or a list of plain values."""
    require_rows(value, name)
    if isinstance(value, Mapping):
        items = {key: _mapped(entry, change, f"{name}[{key!r}]") for key, entry in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return items
        same = copy.copy(value)  # such as a BatchEncoding
        same.update(items)
        return same
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(getattr(value, f), change, f"{name}.{f}") for f in value._fields))
    if isinstance(value, list | tuple) and not all(isinstance(entry, PLAIN) for entry in value):
        return type(value)(_mapped(entry, change, f"{name}[{i}]") for i, entry in enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        other = copy.copy(value)
        for f in fields(value):
            object.__setattr__(other, f.name, _mapped(getattr(value, f.name), change, f"{name}.{f.name}"))
        return other
    if not isinstance(value, (Tensor, Slot, list, tuple, *PLAIN)):
        raise ValueError(
            "A Server needs batches of tensors and plain values, in dicts, lists, tuples and dataclasses. "
            f"Found {type(value).__name__} as {name}. Convert it to a tensor, or leave it out of the batch."
        )
    return change(value, name)
