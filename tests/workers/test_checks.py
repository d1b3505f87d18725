"""The one check of gradients."""

import math
from typing import Any

import pytest
import torch

import zeno
from zeno.workers.checks import NOT_FINITE, gradient_error, malformed, reply_error
from zeno.workers.reply import ErrorKind, ReplyError

LIKE = torch.zeros(2)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHAPE = "sent numbers of shape [{}], expected [2]"


def test_a_gradient_has_shape_dtype_and_layout_of_the_parameters_and_is_finite() -> None:
    assert gradient_error(torch.ones(2), LIKE) is None
    assert gradient_error(torch.ones(4)[::2], LIKE) is None, "strides do not matter"
    assert gradient_error(torch.ones(2, requires_grad=True), LIKE) is None


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
    for finite in (True, False):
        error = gradient_error(value, LIKE, finite=finite)
        assert error is not None
        assert error.kind is ErrorKind.MALFORMED
        assert error.text.startswith(text)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_malformed() -> None:
    error = gradient_error(torch.nested.nested_tensor([torch.ones(2)]), LIKE)
    assert error == malformed("sent torch.float32, nested, expected torch.float32, torch.strided")


@pytest.mark.parametrize("dtype", FLOATS)
def test_any_float_accepts_every_floating_point_dtype(dtype: torch.dtype) -> None:
    value = torch.ones(2, dtype=dtype)
    assert gradient_error(value, LIKE, any_float=True) is None
    assert (gradient_error(value, LIKE) is None) == (dtype == torch.float32)
    error = gradient_error(value.int(), LIKE, any_float=True)
    assert error == malformed("sent torch.int32, torch.strided, expected floating point, torch.strided")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_are_checked_only_on_request(value: float) -> None:
    assert gradient_error(torch.tensor([1.0, value]), LIKE) == NOT_FINITE
    assert gradient_error(torch.tensor([1.0, value]), LIKE, finite=False) is None


def test_a_reply_is_checked_for_its_error_and_its_step_as_well() -> None:
    raised = ReplyError(ErrorKind.RAISED, "raised OSError")
    assert reply_error(zeno.Reply(0, 3, torch.ones(2)), 3, LIKE) is None
    assert reply_error(zeno.Reply(0, 3, torch.ones(2), raised), 3, LIKE) == raised
    assert reply_error(zeno.Reply(0, 2, torch.ones(2)), 3, LIKE) == malformed(
        "sent the gradient of step 2, expected step 3"
    )
    assert reply_error(zeno.Reply(0, 2, None), 3, LIKE) == malformed("sent NoneType, expected a tensor")
