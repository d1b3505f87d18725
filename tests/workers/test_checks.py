"""The one check of gradients."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import zeno
from zeno.workers.checks import as_gradient, gradient_of, malformed
from zeno.workers.reply import ErrorKind, ReplyError

LIKE = torch.zeros(2)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHAPE = "sent numbers of shape [{}], expected [2]"


def test_a_gradient_has_shape_dtype_and_layout_of_the_parameters() -> None:
    for value in (torch.ones(2), torch.ones(4)[::2], torch.ones(2, requires_grad=True), nn.Parameter(torch.ones(2))):
        found = as_gradient(value, LIKE)
        assert type(found) is Tensor
        assert (found.tolist(), found.requires_grad) == ([1.0, 1.0], False)
    value = torch.ones(2)
    assert as_gradient(value, LIKE).data_ptr() == value.data_ptr()  # type: ignore[union-attr]
    assert isinstance(as_gradient(torch.tensor([1.0, math.nan]), LIKE), Tensor), "numbers are not read"


@pytest.mark.parametrize(
    "array",
    [
        np.array([1, 2], np.float32),
        np.array([2, 1], np.float32)[::-1],
        np.array([1, 2], ">f4"),
        np.array([1, 2], np.float32).view(np.recarray),
    ],
)
def test_an_array_is_taken_like_a_tensor(array: Any) -> None:
    found = as_gradient(array, LIKE)
    assert isinstance(found, Tensor)
    assert found.tolist() == [1.0, 2.0]


class Overridden(Tensor):
    """Raises whatever is done with it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("its own code was called")

    shape = property(lambda self: 1 / 0)
    dtype = property(lambda self: 1 / 0)
    __repr__ = __str__ = __len__ = __iter__ = lambda self: 1 / 0  # type: ignore[assignment]


class Dispatched(Tensor):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise AssertionError("its own code was called")


class Named(type):
    __name__ = property(lambda cls: 1 / 0)

    def __instancecheck__(cls, instance: object) -> bool:
        raise AssertionError("its own code was called")


class Liar(metaclass=Named):
    __class__ = Tensor  # type: ignore[assignment]
    __repr__ = __str__ = lambda self: 1 / 0  # type: ignore[assignment, return-value]


def emptied() -> Tensor:
    value = torch.ones(2)
    value.untyped_storage().resize_(0)
    return value


def test_a_subclass_is_the_tensor_that_it_holds() -> None:
    found = as_gradient(Tensor._make_subclass(Overridden, torch.tensor([1.0, 2.0])), LIKE)
    assert type(found) is Tensor
    assert found.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Liar(), "sent Liar, expected a tensor"),
        (Tensor._make_subclass(Dispatched, torch.ones(2)), "sent Dispatched, expected a tensor"),
        (np.array(["a", "b"], dtype=object), "sent ndarray, expected a tensor"),
        (torch.ones(2, device="meta"), "sent a tensor without the memory for its numbers"),
        (emptied(), "sent a tensor without the memory for its numbers"),
    ],
    ids=["liar", "dispatch", "objects", "meta", "emptied"],
)
def test_objects_that_are_no_tensor_in_memory_are_malformed(value: object, text: str) -> None:
    assert as_gradient(value, LIKE) == malformed(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "sent NoneType, expected a tensor"),
        ([1.0, 2.0], "sent list, expected a tensor"),
        (torch.ones(3), SHAPE.format(3)),
        (torch.ones(2, 1), SHAPE.format("2, 1")),
        (torch.tensor(1.0), SHAPE.format("")),
        (torch.tensor([math.nan] * 3), SHAPE.format(3)),
        (torch.ones(2, dtype=torch.int64), "sent torch.int64, torch.strided, expected torch.float32, torch.strided"),
        (torch.ones(2).to_sparse(), "sent torch.float32, torch.sparse_coo, expected torch.float32, torch.strided"),
    ],
)
def test_anything_else_is_malformed(value: Any, text: str) -> None:
    error = as_gradient(value, LIKE)
    assert isinstance(error, ReplyError)
    assert error.kind is ErrorKind.MALFORMED
    assert error.text.startswith(text)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_malformed() -> None:
    error = as_gradient(torch.nested.nested_tensor([torch.ones(2)]), LIKE)
    assert error == malformed("sent torch.float32, nested, expected torch.float32, torch.strided")


@pytest.mark.parametrize("dtype", FLOATS)
def test_any_float_accepts_every_floating_point_dtype(dtype: torch.dtype) -> None:
    value = torch.ones(2, dtype=dtype)
    assert isinstance(as_gradient(value, LIKE, any_float=True), Tensor)
    assert isinstance(as_gradient(value, LIKE), Tensor) == (dtype == torch.float32)
    error = as_gradient(value.int(), LIKE, any_float=True)
    assert error == malformed("sent torch.int32, torch.strided, expected floating point, torch.strided")


def test_a_reply_is_checked_for_its_error_and_its_step_as_well() -> None:
    raised = ReplyError(ErrorKind.RAISED, "raised OSError")
    assert isinstance(gradient_of(zeno.Reply(0, 3, torch.ones(2)), 3, LIKE), Tensor)
    assert gradient_of(zeno.Reply(0, 3, torch.ones(2), raised), 3, LIKE) == raised
    assert gradient_of(zeno.Reply(0, 2, torch.ones(2)), 3, LIKE) == malformed(
        "sent the gradient of step 2, expected step 3"
    )
    step: Any = Liar()
    assert gradient_of(zeno.Reply(0, step, torch.ones(2)), 3, LIKE) == malformed(
        "sent Liar as its step, expected step 3"
    )
    assert gradient_of(zeno.Reply(0, 2, None), 3, LIKE) == malformed("sent NoneType, expected a tensor")
