"""Is this a gradient? Every reply is checked here, wherever it comes from."""

from torch import Tensor

from zeno.rules.linalg.passes import all_finite
from zeno.workers.reply import ErrorKind, Reply, ReplyError

NOT_FINITE = ReplyError(ErrorKind.NOT_FINITE, "sent numbers that are not finite")


def gradient_error(value: object, like: Tensor, *, any_float: bool = False, finite: bool = True) -> ReplyError | None:
    """Why `value` is not a gradient with the shape, dtype and layout of `like`; None if it is one.

    `any_float` accepts every floating-point dtype; without `finite` the numbers are not read.
    """
    if not isinstance(value, Tensor):
        return malformed(f"sent {type(value).__name__}, expected a tensor")
    same_dtype = value.is_floating_point() if any_float else value.dtype == like.dtype
    if value.is_nested or value.layout != like.layout or not same_dtype:  # before the shape: a nested tensor has none
        layout = "nested" if value.is_nested else value.layout
        expected = "floating point" if any_float else like.dtype
        return malformed(f"sent {value.dtype}, {layout}, expected {expected}, {like.layout}")
    if value.shape != like.shape:
        return malformed(f"sent numbers of shape {list(value.shape)}, expected {list(like.shape)}")
    return NOT_FINITE if finite and not all_finite(value) else None


def reply_error(reply: Reply, step: int, like: Tensor, *, finite: bool = True) -> ReplyError | None:
    """Why a reply is not a gradient of this step; None if it is one."""
    if reply.error is not None:
        return reply.error
    if isinstance(reply.gradient, Tensor) and reply.step != step:
        return malformed(f"sent the gradient of step {reply.step}, expected step {step}")
    return gradient_error(reply.gradient, like, finite=finite)


def malformed(text: str) -> ReplyError:
    return ReplyError(ErrorKind.MALFORMED, text)


def loss_raised(text: str) -> ReplyError:
    return ReplyError(ErrorKind.LOSS_RAISED, f"sent a gradient after which the loss raises {text}")
