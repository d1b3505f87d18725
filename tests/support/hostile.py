"""Replies of hostile clients to a message of Flower, each with the kind of error that it has to be."""

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from hypothesis import strategies as st
from torch import Tensor

from support.flower import Replies, parameters_in, reply_with
from zeno.workers.reply import ErrorKind

Attack = Callable[[Message], Replies]
unpickled: list[str] = []  # must stay empty


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return unpickled.append, ("it was unpickled",)


def npy(array: np.ndarray, pickled: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=pickled)
    return buffer.getvalue()


def npz(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, array)
    return buffer.getvalue()


def with_array(array: Array, name: str = "weight") -> Attack:
    """The right reply, except for one array."""

    def attack(message: Message) -> Message:
        reply = reply_with(message, parameters_in(message))
        reply.content.array_records["arrays"][name] = array
        return reply

    return attack


def with_state(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Attack:
    return lambda message: reply_with(message, change(parameters_in(message)))


def with_content(content: RecordDict) -> Attack:
    return lambda message: Message(content, reply_to=message)


def with_metadata(**changes: object) -> Attack:
    """The right reply, with other metadata."""

    def attack(message: Message) -> Message:
        reply = reply_with(message, parameters_in(message))
        reply.metadata.__dict__.update({f"_{name}": value for name, value in changes.items()})
        return reply

    return attack


def without_content(message: Message) -> Message:
    reply = reply_with(message, parameters_in(message))
    reply.__dict__["_content"] = None
    return reply


def other_object(message: Message) -> Message:
    reply = reply_with(message, parameters_in(message))
    reply.__dict__["_content"] = {"arrays": 3}
    return reply


ZEROS = np.zeros((2, 5), np.float32)  # of the shape of the weight
LYING = npy(ZEROS).replace(b"(2, 5)", b"(9, 9)")
GIANT = npy(ZEROS).replace(b"(2, 5), }            ", b"(1000000000000,), }  ")
BOMB = np.array([[Bomb()] * 5] * 2, dtype=object)
DECLARED = ("float32", (2, 5), "numpy.ndarray")

MALFORMED: dict[str, Attack] = {
    "missing key": with_state(lambda state: {"weight": state["weight"]}),
    "further key": with_state(lambda state: {**state, "more": state["weight"]}),
    "renamed key": with_state(lambda state: {"Weight": state["weight"], "bias": state["bias"]}),
    "many keys": with_state(lambda state: {**state, **{str(i): state["bias"] for i in range(1000)}}),
    "no keys": with_state(lambda state: {}),
    "transposed": with_state(lambda state: {**state, "weight": state["weight"].T}),
    "one axis more": with_state(lambda state: {**state, "weight": state["weight"][None]}),
    "integers": with_state(lambda state: {**state, "weight": state["weight"].long()}),
    "complex": with_array(Array(ZEROS.astype(np.complex64))),
    "texts": with_array(Array(np.full((2, 5), "1.0"))),
    "large": with_array(Array(np.zeros((2000, 500), np.float32))),
    "more bytes than declared": with_array(Array(*DECLARED, bytes(10_000_000))),
    "fewer bytes than declared": with_array(Array(*DECLARED, npy(ZEROS)[:-1])),
    "one byte more": with_array(Array(*DECLARED, npy(ZEROS) + b"\0")),
    "another encoding": with_array(Array("float32", (2, 5), "torch.tensor", npy(ZEROS))),
    "no bytes": with_array(Array(*DECLARED, b"")),
    "another shape in the header": with_array(Array(*DECLARED, LYING)),
    "a giant shape in the header": with_array(Array(*DECLARED, GIANT)),
    "another dtype in the header": with_array(Array(*DECLARED, npy(ZEROS.astype(np.float16)) + bytes(20))),
    "declared dtype": with_array(Array("float64", (2, 5), "numpy.ndarray", npy(ZEROS))),
    "a long dtype": with_array(Array("float" * 10_000, (2, 5), "numpy.ndarray", npy(ZEROS))),
    "many axes": with_array(Array("float32", (1,) * 100_000, "numpy.ndarray", npy(ZEROS))),
    "negative axes": with_array(Array("float32", (-2, -5), "numpy.ndarray", npy(ZEROS))),
    "pickle": with_array(Array(*DECLARED, pickle.dumps(Bomb()) + bytes(100))),
    "pickle in npy": with_array(Array("object", (2, 5), "numpy.ndarray", npy(BOMB, pickled=True))),
    "pickle in npy as floats": with_array(Array(*DECLARED, npy(BOMB, pickled=True))),
    "npz": with_array(Array(*DECLARED, npz(ZEROS))),
    "no records": with_content(RecordDict()),
    "no arrays": with_content(RecordDict({"arrays": MetricRecord({"num-examples": 3})})),
    "two records of arrays": with_content(RecordDict({"a": ArrayRecord(), "b": ArrayRecord()})),
    "text as num-examples": with_content(RecordDict({"metrics": ConfigRecord({"num-examples": "many"})})),
    "no content": without_content,
    "another object": other_object,
    "another round": with_metadata(group_id="77"),
    "no round": with_metadata(group_id=""),
    "another message": with_metadata(reply_to_message_id="message-of-others"),
    "another type": with_metadata(message_type="evaluate"),
    "a type that is no text": with_metadata(message_type=3.5),
    "of a node that was not asked": with_metadata(src_node_id=12345),
    "of another node": with_metadata(src_node_id=100),
    "of a node that is none": with_metadata(src_node_id=[1]),
    "no metadata": lambda message: _without_metadata(message),
    "two replies": lambda message: [reply_with(message, parameters_in(message))] * 2,
}
NOT_FINITE: dict[str, Attack] = {
    "NaN": with_state(lambda state: {name: part * float("nan") for name, part in state.items()}),
    "Inf": with_state(lambda state: {**state, "bias": state["bias"] + float("inf")}),
    "beyond float32": with_state(lambda state: {**state, "bias": state["bias"].double() + 1e300}),
}
NO_REPLY: dict[str, Attack] = {
    "nothing": lambda message: None,
}
RAISED: dict[str, Attack] = {
    "an error": lambda message: Message(Error(2, "Traceback\n\x1b[31m" + 10_000 * "x"), reply_to=message),
    "an error without a reason": lambda message: Message(Error(0), reply_to=message),
}
DIED: dict[str, Attack] = {"node unavailable": lambda message: of_the_superlink(message)}
KINDS = {
    ErrorKind.MALFORMED: MALFORMED,
    ErrorKind.NOT_FINITE: NOT_FINITE,
    ErrorKind.LATE: NO_REPLY,
    ErrorKind.RAISED: RAISED,
    ErrorKind.DIED: DIED,
}
ALL = [(kind, name) for kind, attacks in KINDS.items() for name in attacks]


def _without_metadata(message: Message) -> Message:
    reply = reply_with(message, parameters_in(message))
    reply.__dict__["_metadata"] = None
    return reply


def of_the_superlink(message: Message) -> Message:
    """What the SuperLink delivers for a node without a heartbeat: it is not from that node."""
    reply = Message(Error(5, "Node unavailable"), reply_to=message)
    about: Metadata = reply.metadata
    about.__dict__.update(_src_node_id=1, _group_id="")
    return reply


NAMES = st.sampled_from(["weight", "bias", "more", ""]) | st.text(max_size=5)
SHAPES = st.sampled_from([(2, 5), (2,), (), (10,)]) | st.lists(st.integers(-3, 2**62), max_size=4).map(tuple)
DTYPES = st.sampled_from(["float32", "float64", "float16", "int64", "object", "bfloat16", "<f4"]) | st.text(max_size=5)
NUMBERS = st.sampled_from(
    [ZEROS, ZEROS + 1, ZEROS[0, :2], ZEROS.T.copy(), ZEROS.astype(">f8"), np.asfortranarray(ZEROS)]
)


@st.composite
def data(draw: st.DrawFn) -> bytes:
    """Bytes of an array, right or with a few changes, or any."""
    if draw(st.integers(0, 3)) == 0:
        return draw(st.binary(max_size=200))
    found = bytearray(npy(draw(NUMBERS)))
    for _ in range(draw(st.integers(0, 3))):
        found[draw(st.integers(0, len(found) - 1))] = draw(st.integers(0, 255))
    return bytes(found[: draw(st.integers(0, len(found)) | st.just(len(found)))])


ARRAYS = st.builds(Array, DTYPES, SHAPES, st.sampled_from(["numpy.ndarray", "pickle"]), data())
NUMBER = st.integers(-(2**63), 2**64 - 1) | st.floats() | st.just(10**18)
METRICS = st.dictionaries(st.sampled_from(["num-examples", "loss"]) | NAMES, NUMBER | st.lists(st.floats(), max_size=3))
RECORDS = (
    st.dictionaries(NAMES, ARRAYS, max_size=3).map(ArrayRecord)
    | METRICS.map(lambda found: MetricRecord({**found}))
    | st.dictionaries(NAMES, st.text(max_size=5) | st.binary(max_size=5), max_size=2).map(
        lambda found: ConfigRecord({**found})
    )
)
CONTENTS = st.dictionaries(st.sampled_from(["arrays", "metrics"]) | NAMES, RECORDS, max_size=3).map(RecordDict)
ATTACKS: st.SearchStrategy[Attack] = (
    st.sampled_from(ALL).map(lambda one: KINDS[one[0]][one[1]])
    | CONTENTS.map(with_content)
    | st.tuples(ARRAYS, st.sampled_from(["weight", "bias"])).map(lambda found: with_array(*found))
    | st.builds(Error, st.integers(-9, 99), st.none() | st.text()).map(
        lambda error: lambda message: Message(error, reply_to=message)
    )
)
