"""Is this a gradient? Every reply is checked here, wherever it comes from, and is a plain tensor from here on.

A reply may be any object. Until it is a plain tensor of the right size, none of its methods is called, not even for
messages.
"""

from torch import Tensor

from zeno.problem.errors import text_of, type_name
from zeno.problem.flat import plain_tensor
from zeno.workers.reply import ErrorKind, Reply, ReplyError

NOT_FINITE = ReplyError(ErrorKind.NOT_FINITE, "sent numbers that are not finite")


def as_gradient(value: object, like: Tensor, *, any_float: bool = False) -> Tensor | ReplyError:
    """A tensor or array with the shape, dtype and layout of `like` as a plain tensor; or why it is not a gradient.

    `any_float` accepts every floating-point dtype. The numbers are not read: they may not be finite.
    """
    try:
        tensor = plain_tensor(value)
    except Exception as error:
        return malformed(f"sent what cannot be read: {text_of(error)}")
    if tensor is None:
        return malformed(f"sent {type_name(value)}, expected a tensor")
    same_dtype = tensor.is_floating_point() if any_float else tensor.dtype == like.dtype
    if tensor.is_nested or tensor.layout != like.layout or not same_dtype:  # before the shape: a nested one has none
        layout = "nested" if tensor.is_nested else tensor.layout
        expected = "floating point" if any_float else like.dtype
        return malformed(f"sent {tensor.dtype}, {layout}, expected {expected}, {like.layout}")
    if tensor.shape != like.shape:
        return malformed(f"sent numbers of shape {list(tensor.shape)}, expected {list(like.shape)}")
    if tensor.is_meta or not _in_memory(tensor):
        return malformed("sent a tensor without the memory for its numbers")
    return tensor


def _in_memory(tensor: Tensor) -> bool:
    """Whether all of its numbers lie in its storage: to read beyond the end of one could end the process."""
    last = tensor.storage_offset() + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return 0 in tensor.shape or (last + 1) * tensor.element_size() <= tensor.untyped_storage().nbytes()


def gradient_of(reply: Reply, step: int, like: Tensor) -> Tensor | ReplyError:
    """The gradient in a reply to this step, finite or not; or why there is none."""
    if reply.error is not None:
        return reply.error
    if type(reply.step) is not int:
        return malformed(f"sent {type_name(reply.step)} as its step, expected step {step}")
    if reply.gradient is not None and reply.step != step:
        return malformed(f"sent the gradient of step {reply.step}, expected step {step}")
    return as_gradient(reply.gradient, like)


def malformed(text: str) -> ReplyError:
    return ReplyError(ErrorKind.MALFORMED, text)


def loss_raised(text: str) -> ReplyError:
    return ReplyError(ErrorKind.LOSS_RAISED, f"sent a gradient after which the loss raises {text}")
