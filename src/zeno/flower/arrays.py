"""Arrays as clients send them, read without trust.

Flower sends an array as the bytes of a .npy file, beside a dtype and a shape that the client declares. NumPy's reader
evaluates the header as Python literals, and allocates whatever shape it names. Here, the header has to be the one that
NumPy writes for the expected shape, and the numbers are a view of the bytes that are there. Nothing is unpickled.

Shapes: d trainable parameters.
"""

import re
from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor, nn

from zeno.problem.errors import type_name
from zeno.problem.flat import plain_tensor, trainable
from zeno.workers.checks import malformed
from zeno.workers.reply import ReplyError

STYPE = "numpy.ndarray"  # Flower's name for the bytes of a .npy file
DTYPES = {"float16": "f2", "float32": "f4", "float64": "f8"}
MOST_HEADER = 1024  # bytes before the numbers; NumPy writes 128 for any usual shape
MAX_LETTERS = 120  # of a client's own text, in a reason
MOST_AXES = 8  # of a shape, in a reason
VERSIONS = {b"\x01\x00": 2, b"\x02\x00": 4}  # of the format: how many bytes hold the length of the header
HEADER = re.compile(
    rb"\{'descr': '([<>])(f[248])', 'fortran_order': (True|False), 'shape': \(([\d, ]{0,200})\), \} *\n"
)


class UnreadableError(ValueError):
    """What is wrong with an array, as the end of the sentence "Worker 3 ..."."""


def displacement(record: ArrayRecord, model: nn.Module, x: Tensor) -> Tensor | ReplyError:
    """x - x_i [d], from the parameters x of the model to those in the record; or why the record has none.

    Buffers and frozen parameters may be in the record. They are not read: the server has its own.
    """
    parameters, known = trainable(model), model.state_dict()
    try:
        arrays = _by_name(record, parameters, known)
        parts = [_numbers(arrays[name], parameter, name) for name, parameter in parameters.items()]
    except UnreadableError as reason:
        return malformed(str(reason))
    return x - torch.cat([part.to(x).flatten() for part in parts])


def _by_name(record: ArrayRecord, needed: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> dict[str, Array]:
    if len(record) > len(known):
        raise UnreadableError(f"sent {len(record)} arrays, expected {len(known)}")
    unknown = [name for name in record if name not in known]
    if unknown:
        raise UnreadableError(f"sent an array for {str(unknown[0])[:MAX_LETTERS]!r}, which the model does not have")
    missing = [name for name in needed if name not in record]
    if missing:
        raise UnreadableError(f"sent no array for {missing[0]!r}")
    return dict(record)


def _numbers(array: Array, like: Tensor, name: str) -> Tensor:
    """The numbers of an array as a tensor of the shape of `like`, in the dtype in which they were sent."""
    dtype, shape, data = array.dtype, array.shape, array.data
    if not isinstance(dtype, str) or not isinstance(shape, tuple) or type(data) is not bytes:
        raise UnreadableError(f"sent {type_name(data)} for {name!r}, expected an array in bytes")
    if shape != tuple(like.shape):
        found = str(list(shape[:MOST_AXES]))[:MAX_LETTERS]
        raise UnreadableError(f"sent numbers of shape {found} for {name!r}, expected {list(like.shape)}")
    if array.stype != STYPE:
        raise UnreadableError(f"sent {str(array.stype)[:MAX_LETTERS]!r} for {name!r}, expected {STYPE!r}")
    if dtype not in DTYPES:
        raise UnreadableError(f"sent {dtype[:MAX_LETTERS]!r} for {name!r}, expected floating point")
    size = like.numel() * int(DTYPES[dtype][1])
    if not size < len(data) <= size + MOST_HEADER:
        raise UnreadableError(f"sent {len(data)} bytes for {name!r}, expected about {size}")
    start, order, code, fortran = _header(data, name, tuple(like.shape))
    if code != DTYPES[dtype] or len(data) != start + size:
        raise UnreadableError(f"sent another array for {name!r} than it declares")
    numbers = np.frombuffer(data, np.dtype(order + code), like.numel(), start)
    tensor = plain_tensor(numbers.reshape(like.shape, order="F" if fortran else "C"))
    assert tensor is not None  # it is an array of floating-point numbers
    return tensor


def _header(data: bytes, name: str, shape: tuple[int, ...]) -> tuple[int, str, str, bool]:
    """Where the numbers start, their byte order and type, and whether columns are stored first."""
    width = VERSIONS.get(data[6:8]) if data[:6] == b"\x93NUMPY" else None
    if width is None:
        raise UnreadableError(f"sent bytes for {name!r} that are not an array of NumPy")
    start = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    found = HEADER.fullmatch(data[8 + width : start]) if start <= MOST_HEADER else None
    if found is None:
        raise UnreadableError(f"sent an array for {name!r} with another header than NumPy writes")
    order, code, fortran, sizes = (part.decode() for part in found.groups())
    if sizes.replace(" ", "").removesuffix(",") != ",".join(map(str, shape)):
        raise UnreadableError(f"sent another shape for {name!r} than it declares")
    return start, order, code, fortran == "True"
