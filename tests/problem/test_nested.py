"""Batches in a user's own form: read, cut and joined."""

import dataclasses
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence
from transformers import BatchEncoding

import zeno
from zeno.problem.nested import NestedBatch, joined, read
from zeno.server.samples import LoaderSamples

CPU = torch.device("cpu")


class Named(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    y: Any = None


@dataclasses.dataclass
class Derived:
    x: Any
    y: Any = dataclasses.field(init=False, default_factory=lambda: 3)


X, Y = torch.arange(12.0).view(4, 3), torch.arange(4)
FORMS: dict[str, Any] = {
    "a tensor": X,
    "a list": [X, Y],
    "a tuple": (X, Y),
    "a named tuple": Named(X, Y),
    "a dict": {"x": X, "y": Y},
    "numbers as keys": {0: X, 1: Y},
    "an ordered dict": OrderedDict(x=X, y=Y),
    "a dict with a default": defaultdict(list, x=X, y=Y),
    "a Hugging Face batch": BatchEncoding({"x": X, "y": Y}),
    "a dataclass": Frozen(X, Y),
    "a dataclass with a field of its own": Derived(X),
    "nested": {"inputs": (X, [Frozen({"deep": X}), None]), "y": Named(Y, {})},
    "with constants": {"x": X, "scale": 0.5, "task": "sum", "sizes": [3, 5], "none": None, "t": torch.tensor(2.0)},
    "with a text for each sample": {"x": X, "text": ["a", "b", "c", "d"], "ids": (7, 8, 9, 10)},
}


def same(one: Any, other: Any) -> bool:
    """Whether two batches have the same types, values and order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if dataclasses.is_dataclass(one):
        return same(vars(one), vars(other))
    if isinstance(one, dict | BatchEncoding):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_is_read_and_given_back_in_its_form(form: str) -> None:
    piece = read(FORMS[form], CPU)
    assert piece.size == 4
    assert same(piece.batch(), FORMS[form])
    assert piece.at(slice(1, 3)).size == 2


def test_what_belongs_to_samples_is_cut_and_the_rest_stays() -> None:
    piece = read(FORMS["with a text for each sample"] | FORMS["with constants"], CPU)
    for where in (slice(1, 3), torch.tensor([1, 2])):
        assert same(
            piece.at(where).batch(),
            {
                "x": torch.tensor([[3.0, 4, 5], [6, 7, 8]]),
                "text": ["b", "c"],
                "ids": (8, 9),
                "scale": 0.5,
                "task": "sum",
                "sizes": [3, 5],
                "none": None,
                "t": torch.tensor(2.0),
            },
        )


def test_a_list_that_is_as_long_as_a_part_is_not_cut_with_it() -> None:
    part = read({"x": X, "sizes": [3, 5]}, CPU).at(slice(2))
    assert part.at(slice(1)).batch()["sizes"] == [3, 5]


def test_a_mapping_that_cannot_be_copied_becomes_a_dict() -> None:
    assert same(read(MappingProxyType({"x": X}), CPU).batch(), {"x": X})


def test_all_tensors_are_moved_to_the_device() -> None:
    batch = read({"x": X, "deep": [Frozen(Y)], "t": torch.tensor(2.0)}, torch.device("meta")).batch()
    assert {tensor.device.type for tensor in (batch["x"], batch["deep"][0].x, batch["t"])} == {"meta"}


def test_the_users_batch_does_not_change() -> None:
    batch = BatchEncoding({"x": X, "parts": [X, Frozen(Y)]})
    read(batch, CPU).at(slice(2)).batch()["x"] = None
    assert same(batch, BatchEncoding({"x": X, "parts": [X, Frozen(Y)]}))


def pieces_of(*batches: Any) -> NestedBatch:
    return joined(read(batch, CPU) for batch in batches)


def test_texts_of_other_lengths_stay_in_pieces_of_their_own() -> None:
    batch = pieces_of(torch.ones(2, 5), torch.ones(1, 5), torch.ones(3, 7), torch.ones(1, 5))
    assert [list(piece.batch().shape) for piece in batch.pieces] == [[3, 5], [3, 7], [1, 5]]
    assert batch.size == 7
    assert [list(piece.batch().shape) for piece in batch.cut(slice(2, 5)).pieces] == [[1, 5], [2, 7]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"x": X, "task": "sum"}, {"x": X, "task": "mean"}),
        ({"x": X, "t": torch.tensor(1.0)}, {"x": X, "t": torch.tensor(2.0)}),
        ({"x": X}, {"x": X, "y": Y}),
        ({"x": X, "y": Y}, {"y": Y, "x": X}),
        ({"x": X, "text": ["a"] * 4}, {"x": X, "text": ("a",) * 4}),
        ({"x": X, "y": Y}, {"x": X, "y": Y.float()}),
    ],
)
def test_batches_that_differ_in_more_than_their_samples_are_not_joined(one: Any, other: Any) -> None:
    batch = pieces_of(one, one, other)
    assert [piece.size for piece in batch.pieces] == [8, 4]
    assert same(batch.pieces[1].batch(), other)


# Any form: a function from the numbers of samples to a batch of them

Form = Callable[[list[int]], Any]


def tensors(shape: tuple[int, ...]) -> Form:
    def batch(ids: list[int]) -> Tensor:
        size = int(np.prod(shape))
        return (torch.tensor(ids).view(-1, 1) * 100 + torch.arange(size)).view(len(ids), *shape)

    return batch


def texts(ids: list[int]) -> list[str]:
    return [f"text {i}" for i in ids]


constants = st.sampled_from([None, 3, 0.5, "mean", True])
leaves = st.one_of(
    st.lists(st.integers(1, 3), max_size=2).map(tuple).map(tensors),
    st.just(texts),
    constants.map(lambda value: lambda ids: value),
)
forms = st.recursive(
    leaves,
    lambda inner: st.one_of(
        # With a tensor in front: a list of constants could have as many entries as there are samples.
        st.lists(inner, max_size=2).map(lambda parts: lambda ids: [torch.tensor(ids), *(part(ids) for part in parts)]),
        st.lists(inner, max_size=2).map(lambda parts: lambda ids: (torch.tensor(ids), *(part(ids) for part in parts))),
        st.tuples(inner, inner).map(lambda parts: lambda ids: Named(*(part(ids) for part in parts))),
        st.tuples(inner, inner).map(lambda parts: lambda ids: Frozen(*(part(ids) for part in parts))),
        st.dictionaries(st.sampled_from("abc"), inner).map(
            lambda parts: lambda ids: {key: part(ids) for key, part in parts.items()}
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(forms, st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_cutting_and_joining_gives_the_same_samples_in_order(
    inner: Form, sizes: list[int], data: st.DataObject
) -> None:
    def form(ids: list[int]) -> Any:
        return {"x": tensors((2,))(ids), "more": inner(ids)}

    ids = list(range(sum(sizes)))
    ends = np.cumsum(sizes).tolist()
    batches = [form(ids[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
    pieces = []
    for batch, size in zip(batches, sizes, strict=True):
        at = data.draw(st.integers(1, size))
        piece = read(batch, CPU)
        pieces += [part for part in (piece.at(slice(at)), piece.at(torch.arange(at, size))) if part.size]
    everything = joined(pieces)
    [piece] = everything.pieces
    assert same(piece.batch(), form(ids))
    start, stop = sorted(data.draw(st.tuples(st.integers(0, len(ids) - 1), st.integers(1, len(ids)))))
    part = NestedBatch(tuple(pieces)).cut(slice(start, stop))
    assert part.size == stop - start
    if part.size:
        assert same(joined(part.pieces).pieces[0].batch(), form(ids[start:stop]))


WRONG: dict[str, tuple[Any, str]] = {
    "other numbers of samples": (
        {"input_ids": torch.zeros(8, 12), "labels": [torch.zeros(7)]},
        "Found batch['input_ids'] of shape [8, 12], batch['labels'][0] of shape [7].",
    ),
    "no samples": (Frozen(torch.zeros(0, 3)), "Found batch.x of shape [0, 3]."),
    "no tensors": ({"text": ["a", "b"], "scale": torch.tensor(1.0)}, "Found no tensor with rows."),
    "many": (
        [torch.zeros(i) for i in range(1, 10)],
        "Found batch[0] of shape [1], batch[1] of shape [2], batch[2] of shape [3], batch[3] of shape [4], "
        "batch[4] of shape [5], batch[5] of shape [6], 3 more.",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_batch_without_a_clear_number_of_samples_raises(case: str) -> None:
    batch, found = WRONG[case]
    with pytest.raises(ValueError) as raised:
        read(batch, CPU)
    assert str(raised.value) == (
        "A Server needs batches in which every tensor has one row per sample, and at least one row. "
        f"{found} Keep tensors without samples out of the batch: the loss can refer to them."
    )


def test_what_cannot_be_cut_raises() -> None:
    with pytest.raises(ValueError) as raised:
        read({"x": X, "boxes": [np.zeros(3)]}, CPU)
    assert str(raised.value) == (
        "A Server needs batches of tensors and plain values, in dicts, lists, tuples and dataclasses. Found ndarray as "
        "batch['boxes'][0]. Convert it to a tensor, or leave it out of the batch."
    )


def rows_of_two_lengths(**more: Any) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, that these are new
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], **more)


UNCUTTABLE: dict[str, tuple[Any, str]] = {
    "packed": (pack_sequence([torch.ones(3), torch.ones(2)]), "PackedSequence as {}. Pad it, and pass the lengths."),
    "nested": (rows_of_two_lengths(), "a nested tensor as {}. Pad it, and pass the lengths."),
    "jagged": (rows_of_two_lengths(layout=torch.jagged), "a nested tensor as {}. Pad it, and pass the lengths."),
    "sparse": (
        torch.eye(2).to_sparse(),
        "a tensor of layout torch.sparse_coo as {}. Pass what its to_dense() returns.",
    ),
}


@pytest.mark.parametrize("case", UNCUTTABLE)
def test_tensors_without_a_row_for_each_sample_raise(case: str) -> None:
    value, found = UNCUTTABLE[case]
    needs = "A Server needs batches of tensors that can be cut. Found "
    for batch, name in (({"x": value, "y": torch.ones(2)}, "batch['x']"), ([torch.ones(2), [value]], "batch[1][0]")):
        with pytest.raises(ValueError) as raised:
            read(batch, CPU)
        assert str(raised.value) == needs + found.format(name)
    pairs = LoaderSamples([(value, torch.ones(2))], CPU, zeno.ZenoAuto(), nested=False)
    with pytest.raises(ValueError) as raised:
        pairs.take(2, "score", 0)
    assert str(raised.value) == needs + found.format("batch[0]")
