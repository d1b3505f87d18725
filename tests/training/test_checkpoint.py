"""A run goes on from what is whole on the disk, whatever happened to the process and to the files."""

import hashlib
import json
import logging
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from enum import Enum
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedulers

from zeno.training import checkpoint
from zeno.training.checkpoint import newest, save

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]
OLD = {"model": {"weight": torch.arange(6.0).reshape(2, 3)}, "seen": (1, [2.5, None]), "name": "old"}
NEW = {"model": {"weight": torch.arange(6.0).reshape(2, 3) / 7}, "seen": (2, [float("inf"), True]), "name": "new"}


def same(left: Any, right: Any) -> bool:
    """Whether two trees are the same to the last bit, types and the order of entries included."""
    if type(left) is not type(right):
        return False
    if isinstance(left, Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and bits(left) == bits(right)
    if isinstance(left, dict):
        return same(list(left), list(right)) and same(list(left.values()), list(right.values()))
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right)
    return bool(left == right)


def bits(tensor: Tensor) -> bytes:
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes()


def back(state: dict[str, Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), 3, state)
        found = newest(Path(folder))
    assert found is not None
    assert found[0] == 3
    return found[1]


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder with the checkpoints of step 1 (OLD) and step 2 (NEW)."""
    save(tmp_path / "run", 1, OLD)
    save(tmp_path / "run", 2, NEW)
    return tmp_path / "run"


def reason(folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    """Why step 2 was passed over; step 1 must be found."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "zeno"):
        found = newest(folder)
    assert found is not None
    assert found[0] == 1
    assert same(found[1], OLD)
    (record,) = caplog.records
    assert record.name == "zeno"
    before, why = record.getMessage().split(" is passed over: ")
    assert before == f"The checkpoint of step 2 in {folder}"
    return why


def forge(folder: Path, **changes: Any) -> None:
    """Writes the JSON file of step 2 anew, with right hashes, as one who means harm can."""
    file = folder / "step-00000002.json"
    content = json.loads(file.read_text()) | changes
    del content["sha256"]
    file.write_text(sealed(json.dumps(content)[:-1]))


def sealed(text: str) -> str:
    return f'{text},"sha256":"{hashlib.sha256(text.encode()).hexdigest()}"}}\n'


def forge_tensors(folder: Path, raw: bytes) -> None:
    name = "step-00000002.safetensors"
    (folder / name).write_bytes(raw)
    forge(folder, tensors={"file": name, "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()})


# What comes back


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    raw = draw(st.integers(0, 2**32))
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(raw)) * 100
    return numbers.to(draw(st.sampled_from(DTYPES)))


KEYS = st.text(max_size=5) | st.integers()
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5) | tensors()
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=5), TREES, max_size=4))
@settings(max_examples=100, deadline=None)
def test_a_tree_comes_back_as_it_was(state: dict[str, Any]) -> None:
    nan = float("nan")  # there are many; all but those in tensors become this one
    assert same(back(state), mapped(state, lambda leaf: nan if isinstance(leaf, float) and leaf != leaf else leaf))


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(tree, dict):
        return {key: mapped(value, change) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(mapped(value, change) for value in tree)
    return change(tree)


@pytest.mark.parametrize(
    "value",
    [
        0.1,
        5e-324,
        1.7976931348623157e308,
        -0.0,
        float("inf"),
        -float("inf"),
        float("nan"),
        2**63,
        -(10**5000),
        "\ud800",
    ],
    ids=lambda value: str(value)[:10] if isinstance(value, float) else type(value).__name__,
)
def test_numbers_and_text_are_exact(value: Any) -> None:
    assert same(back({"a": value, "b": {7: value}}), {"a": value, "b": {7: value}})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (5,), (2, 3, 4)], ids=str)
def test_tensors_keep_dtype_shape_and_bits(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.randn(shape) * 100).to(dtype)
    assert same(back({"a": tensor}), {"a": tensor})


def test_odd_tensors_keep_their_values() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    odd = {
        "flipped": base.t(),
        "every second": base[:, ::2],
        "one column": base[:, 1],
        "one of a column": base[2:3, 1],  # contiguous, with a stride of 6
        "none of a column": base[2:2, 1],
        "expanded": torch.arange(3).expand(5, 3),
        "negated": torch.tensor([1 + 2j]).conj().imag,
        "nan bits": torch.tensor([0x7FC00001, -1, 0x7F800001], dtype=torch.int32).view(torch.float32),
        "with gradient": (torch.ones(3, requires_grad=True) * 2),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    }
    found = back(odd)
    for name, tensor in odd.items():
        assert same(found[name], tensor.detach().resolve_neg()), name
        assert not found[name].requires_grad


def test_tensors_that_share_memory_come_back_apart() -> None:
    base = torch.arange(4.0)
    found = back({"all": base, "again": base, "part": base[1:3]})
    assert same(found, {"all": base, "again": base, "part": torch.tensor([1.0, 2.0])})
    found["all"].zero_()
    assert same(found["again"], base)
    assert same(found["part"], torch.tensor([1.0, 2.0]))


class Text(str, Enum):
    HERE = "here"


def test_subclasses_become_the_plain_type() -> None:
    state = {
        "numbers": [
            np.float64(0.1),
            np.float32(0.5),
            np.int64(3),
            np.bool_(True),
            np.str_("a"),
            Text.HERE,
            signal.SIGTERM,
        ],
        "dicts": [OrderedDict(b=1, a=2), Counter("aab"), defaultdict(list, {0: []}), {np.int64(4): 1}],
        "parameter": nn.Parameter(torch.ones(2)),
    }
    expected = {
        "numbers": [0.1, 0.5, 3, True, "a", "here", 15],
        "dicts": [{"b": 1, "a": 2}, {"a": 2, "b": 1}, {0: []}, {4: 1}],
        "parameter": torch.ones(2),
    }
    assert same(back(state), expected)


def test_what_came_back_does_not_need_the_file(tmp_path: Path) -> None:
    save(tmp_path, 1, OLD)
    found = newest(tmp_path)
    file = tmp_path / "step-00000001.safetensors"
    with file.open("r+b") as open_file:
        open_file.write(bytes(file.stat().st_size))
    assert found is not None
    assert same(found[1], OLD)


def test_the_tensor_file_is_one_that_others_read(tmp_path: Path) -> None:
    mixed = [torch.tensor([True]), torch.arange(3.0), torch.arange(5, dtype=torch.float64)]
    file = save(tmp_path, 250, {"mixed": mixed})
    assert file == tmp_path / "step-00000250.json"
    assert names(tmp_path) == ["step-00000250.json", "step-00000250.safetensors"]
    assert same(list(dict(sorted(load_file(tmp_path / "step-00000250.safetensors").items())).values()), mixed)
    raw = (tmp_path / "step-00000250.safetensors").read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    assert all((start + header[str(i)]["data_offsets"][0]) % t.element_size() == 0 for i, t in enumerate(mixed))
    assert json.loads(file.read_text())["step"] == 250


# Optimizers and schedulers


def trainee() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01, amsgrad=True),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
}
SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "step": lambda o: schedulers.StepLR(o, 2, 0.5),
    "multistep": lambda o: schedulers.MultiStepLR(o, [2, 4, 4, 6], 0.5),
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, 9),
    "one cycle": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=10),
    "plateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=1),
    "lambda": lambda o: schedulers.LambdaLR(o, lambda epoch: 0.9**epoch),
    "sequential": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, 1.0, 3), schedulers.ExponentialLR(o, 0.8)], [3]
    ),
}


class Run:
    """A small training run that can save itself and go on."""

    def __init__(self, optimizer: str, scheduler: str) -> None:
        self.model = trainee()
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scheduler = SCHEDULERS[scheduler](self.optimizer)
        self.generator = torch.Generator().manual_seed(3)

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def state(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts().items()} | {
            "generator": self.generator.get_state()
        }

    def load(self, state: dict[str, Any]) -> None:
        for name, part in self.parts().items():
            part.load_state_dict(state[name])
        self.generator.set_state(state["generator"])

    def steps(self, num: int) -> list[float]:
        losses = []
        for _ in range(num):
            x = torch.randn(8, 4, generator=self.generator)
            loss = (self.model(x) - x.sum(dim=1, keepdim=True)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            wants_loss = isinstance(self.scheduler, schedulers.ReduceLROnPlateau)
            self.scheduler.step(*([loss.item()] if wants_loss else []))
            losses += [loss.item(), self.optimizer.param_groups[0]["lr"]]
        return losses


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_run_goes_on_as_if_it_had_never_stopped(tmp_path: Path, optimizer: str, scheduler: str) -> None:
    first = Run(optimizer, scheduler)
    first.steps(3)
    save(tmp_path, 3, first.state())
    expected = first.steps(5)
    found = newest(tmp_path)
    assert found is not None
    second = Run(optimizer, scheduler)
    second.load(found[1])
    assert second.steps(5) == expected
    assert Run(optimizer, scheduler).steps(5) != expected, "the state makes a difference"


# What is refused

Pair = namedtuple("Pair", "first second")
HOLDS_ITSELF: list[Any] = []
HOLDS_ITSELF.append(HOLDS_ITSELF)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            {"optimizer": {"param_groups": [{"foo": lambda: 1}]}},
            r"Found function at optimizer\.param_groups\[0\]\.foo\.",
        ),
        ({"a": {3: {"b.c": object()}}}, r"Found object at a\[3\]\['b\.c'\]\."),
        ({"a": (1, {2})}, r"Found set at a\[1\]\."),
        ({"a": b"raw"}, r"Found bytes at a\."),
        ({"a": 1j}, r"Found complex at a\."),
        ({"a": np.zeros(1)}, r"Found ndarray at a\."),
        ({"a": np.longdouble(1)}, r"Found longdouble at a\."),
        ({"a": np.datetime64(0, "s")}, r"Found datetime64 at a\."),
        ({"a": Pair(1, 2)}, r"Found Pair at a\."),
        ({"a": torch.Size([1])}, r"Found Size at a\."),
        ({"a": {(1, 2): 3}}, r"the key \(1, 2\), which is neither text nor int, at a\."),
        ({"a": {None: 3}}, r"the key None, which is neither text nor int, at a\."),
        ({"a": {0.5: 3}}, r"the key 0\.5, which is neither text nor int, at a\."),
        ({0.5: 3}, r"the key 0\.5, which is neither text nor int, at the top\."),
        ({"a": torch.ones(2, device="meta")}, r"Found a tensor with torch\.float32, torch\.strided, on meta at a\."),
        ({"a": torch.ones(2).to_sparse()}, r"torch\.sparse_coo, on cpu at a\."),
        ({"a": torch.ones(2, dtype=torch.complex128)}, r"Found a tensor with torch\.complex128"),
        ({"a": nn.UninitializedParameter()}, r"Found a tensor of the class UninitializedParameter at a\."),
        ({"a": HOLDS_ITSELF}, r"at most 100 levels. Found more at a\[0\]\[0\]"),
    ],
)
def test_what_cannot_be_saved_is_refused_and_nothing_is_written(
    tmp_path: Path, state: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        save(tmp_path / "new", 1, state)
    assert str(refused.value).startswith("A checkpoint holds ")
    assert str(refused.value).endswith(" leave it out.") or str(refused.value).endswith(" Leave it out.")
    assert names(tmp_path) == []


@pytest.mark.parametrize(("step", "keep"), [(-1, 1), (0, 0)])
def test_counts_that_make_no_sense_are_refused(tmp_path: Path, step: int, keep: int) -> None:
    with pytest.raises(ValueError, match=f"Found step {step} and keep {keep}"):
        save(tmp_path, step, {}, keep)


# Files that come and go


def test_without_a_checkpoint_there_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert newest(tmp_path / "nowhere") is None
    assert newest(tmp_path) is None
    (tmp_path / "step-00000007.safetensors").write_bytes(b"killed before the JSON file")
    (tmp_path / "step-00000008.json.tmp").write_bytes(b"killed while it was written")
    (tmp_path / "step-7.json").write_bytes(b"not ours")
    (tmp_path / "step-000000007.json").write_bytes(b"not ours")
    (tmp_path / "step-00000009.json").mkdir()
    os.mkfifo(tmp_path / "step-00000010.json")
    assert newest(tmp_path) is None
    assert not caplog.records, "none of these is a checkpoint"


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_stay(tmp_path: Path, keep: int) -> None:
    saved = []
    for step in [0, 5, 99999999, 100000000, 100000001]:  # nine digits sort after eight
        saved.append(f"step-{step:08d}")
        save(tmp_path, step, {"step": step, "tensor": torch.tensor(step)}, keep)
        assert names(tmp_path) == sorted(f"{s}.{end}" for s in saved[-keep:] for end in ("json", "safetensors"))
        found = newest(tmp_path)
        assert found is not None
        assert same(found, (step, {"step": step, "tensor": torch.tensor(step)}))


def test_what_was_saved_last_is_the_newest(two: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(two, 3, NEW, keep=9)
    save(two, 2, OLD, keep=1)
    assert [record.getMessage() for record in caplog.records] == [
        f"The checkpoint of step 3 in {two} is removed: the run is at step 2 again."
    ]
    found = newest(two)
    assert found is not None
    assert same(found, (2, OLD))
    assert names(two) == ["step-00000002-again.safetensors", "step-00000002.json"]


def test_a_step_can_be_saved_again_and_again(two: Path) -> None:
    before = names(two)
    states: list[dict[str, Any]] = [OLD, NEW, OLD, OLD]
    for i, kept in enumerate(states):
        save(two, 2, kept)
        found = newest(two)
        assert found is not None
        assert same(found, (2, kept))
        assert len(names(two)) == 4
        assert (names(two) == before) == (i % 2 == 1)


def test_a_damaged_one_can_be_saved_again(two: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("step-00000002.json", "step-00000002.safetensors", "step-00000002-again.safetensors"):
        (two / name).write_bytes(b"rubbish")
    save(two, 2, NEW)
    found = newest(two)
    assert found is not None
    assert same(found, (2, NEW))
    assert not caplog.records
    assert len(names(two)) == 4


def test_leftovers_are_swept_and_nothing_else(two: Path) -> None:
    leftovers = ["step-00000002.safetensors.tmp", "step-00000002.json.tmp", "step-00000003.safetensors"]
    leftovers += ["step-00000002-again.safetensors", "step-00000003-again.safetensors.tmp"]
    others = ["model.safetensors", "records.jsonl", "other.tmp", "step-3.safetensors", "step-00000003.txt"]
    for name in leftovers + others:
        (two / name).write_bytes(b"something")
    save(two, 4, NEW, keep=9)
    kept = [f"step-0000000{step}.{end}" for step in (1, 2, 4) for end in ("json", "safetensors")]
    assert names(two) == sorted(kept + others)


def test_the_tensors_of_a_form_that_is_unknown_are_not_swept(two: Path) -> None:
    forge(two, form=2)
    save(two, 4, NEW, keep=9)
    assert "step-00000002.safetensors" in names(two)


# Damage


@pytest.mark.parametrize("end", ["json", "safetensors"])
def test_torn_files_are_passed_over(two: Path, caplog: pytest.LogCaptureFixture, end: str) -> None:
    file = two / f"step-00000002.{end}"
    raw = file.read_bytes()
    for length in range(len(raw)):
        file.write_bytes(raw[:length])
        why = reason(two, caplog)
        cut_off = "step-00000002.json is cut off."
        assert why == (cut_off if end == "json" else f"{file.name} has {length} bytes where {len(raw)} were written.")
    file.write_bytes(raw + b"\n")
    assert file.name in reason(two, caplog)


@pytest.mark.parametrize("end", ["json", "safetensors"])
def test_every_flipped_bit_is_found(two: Path, caplog: pytest.LogCaptureFixture, end: str) -> None:
    file = two / f"step-00000002.{end}"
    raw = bytearray(file.read_bytes())
    draw = random.Random(5)
    seen = Counter[str]()
    for at in range(len(raw)):
        flipped = raw.copy()
        flipped[at] ^= 1 << draw.randrange(8)
        file.write_bytes(flipped)
        why = reason(two, caplog)
        assert why.startswith(file.name)
        kinds = ["is cut off", "is not JSON", "was changed after it was written: its hash is wrong"]
        seen.update(kind for kind in kinds if kind in why)
    assert seen.total() == len(raw)
    assert len(seen) == (3 if end == "json" else 1)


def test_a_flip_that_changes_no_value_is_found_as_well(tmp_path: Path) -> None:
    file = save(tmp_path, 2, {"small": 1e-30, "accent": "é"})
    raw = file.read_bytes()
    for one, other in [(b"1e-30", b"1E-30"), (b"u00e9", b"u00E9")]:
        assert one in raw
        file.write_bytes(raw.replace(one, other))
        assert newest(tmp_path) is None


def test_a_missing_tensor_file_is_reported(two: Path, caplog: pytest.LogCaptureFixture) -> None:
    (two / "step-00000002.safetensors").unlink()
    assert reason(two, caplog) == "step-00000002.safetensors is missing."


def test_a_form_of_the_future_is_reported(two: Path, caplog: pytest.LogCaptureFixture) -> None:
    forge(two, form=2)
    assert reason(two, caplog) == "it has form 2, and this version of zeno reads form 1. Use a newer zeno to read it."


def test_a_renamed_file_is_reported(two: Path, caplog: pytest.LogCaptureFixture) -> None:
    (two / "step-00000002.json").write_bytes((two / "step-00000001.json").read_bytes())
    assert reason(two, caplog) == "step-00000002.json is of step 1: it was renamed."


def test_when_none_is_whole_each_is_reported(two: Path, caplog: pytest.LogCaptureFixture) -> None:
    for step in (1, 2):
        (two / f"step-0000000{step}.json").write_bytes(b"")
    assert newest(two) is None
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert [message.split(" in ")[0] for message in caplog.messages] == [
        "The checkpoint of step 2",
        "The checkpoint of step 1",
    ]


def test_forged_files_are_read_as_what_they_are(two: Path) -> None:
    forge(two, tree={"dict": [["a", 1]]})
    assert newest(two) == (2, {"a": 1}), "so what follows is passed over for its content, not for its hash"


@pytest.mark.parametrize(
    "changes",
    [
        {"tree": 5},
        {"tree": []},
        {"tree": {}},
        {"tree": {"dict": [["a", 1]], "list": []}},
        {"tree": {"pickle": "gASV"}},
        {"tree": {"dict": 5}},
        {"tree": {"dict": [[["a"], 1]]}},
        {"tree": {"dict": [["a", {"tensor": "99"}]]}},
        {"tree": {"dict": [["a", {"tensor": [0]}]]}},
        {"tree": {"dict": [["a", {"float": "x"}]]}},
        {"tree": {"dict": [["a", {"int": "0xx"}]]}},
        {"tree": {"dict": [["a", {"int": 5}]]}},
        {"tree": {"dict": [["a", {"tuple": None}]]}},
        {"tree": None},
        {"tensors": None},
        {"tensors": {}},
        {"tensors": {"file": 5, "bytes": 1, "sha256": "0"}},
        {"form": None},
        {"form": {}},
        {"step": "2"},
        {"step": None},
    ],
    ids=str,
)
def test_forged_json_is_passed_over(two: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any]) -> None:
    forge(two, **changes)
    assert reason(two, caplog)


@pytest.mark.parametrize("name", ["../secret.safetensors", "step-00000001.safetensors", "/dev/zero"])
def test_no_other_file_is_opened(two: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    raw = (two / "step-00000002.safetensors").read_bytes()
    if name.startswith(".."):
        (two / name).write_bytes(raw)
    forge(two, tensors={"file": name, "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()})
    assert reason(two, caplog) == f"step-00000002.json names the tensor file '{name}', which is not of this step."


@pytest.mark.parametrize("opening", ["[", '{"tuple":['], ids=["list", "tuple"])
def test_json_that_is_too_deep_is_passed_over(two: Path, caplog: pytest.LogCaptureFixture, opening: str) -> None:
    closing = {"[": "]", "{": "}"}
    tree = opening * 50_000 + "".join(closing.get(letter, "") for letter in reversed(opening)) * 50_000
    forge(two, tree="HERE")
    text = (two / "step-00000002.json").read_text().replace('"HERE"', f'{{"dict":[["a",{tree}]]}}')
    text = text[: text.rindex(',"sha256"')]
    (two / "step-00000002.json").write_text(sealed(text))
    assert "RecursionError" in reason(two, caplog)


@given(st.binary(max_size=64), st.booleans())
@settings(max_examples=40, deadline=None)
def test_rubbish_in_place_of_tensors_is_passed_over(raw: bytes, with_header: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(folder, 1, OLD)
        save(folder, 2, NEW)
        forge_tensors(folder, len(raw).to_bytes(8, "little") + raw if with_header else raw)
        found = newest(folder)
        assert found is not None
        assert same(found, (1, OLD))


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 2**63]},
        {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 24]},
        {"dtype": "F32", "shape": [2**64], "data_offsets": [0, 24]},
        {"dtype": "F32", "shape": [-6], "data_offsets": [0, 24]},
        {"dtype": "F32", "shape": [6], "data_offsets": [24, 0]},
        {"dtype": "F32", "shape": [7], "data_offsets": [0, 24]},
        {"dtype": "X", "shape": [6], "data_offsets": [0, 24]},
        {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]},
        {},
    ],
    ids=str,
)
def test_forged_tensors_are_passed_over(two: Path, caplog: pytest.LogCaptureFixture, entry: dict[str, Any]) -> None:
    text = json.dumps({"0": entry}).encode()
    forge_tensors(two, len(text).to_bytes(8, "little") + text + bytes(24))
    assert reason(two, caplog)


# Death


class DeathError(BaseException):
    """The process ends here."""


def dies_at(line: int, do: Callable[[], Any]) -> bool:
    """Runs `do` and ends it before the n-th line of the module is run; whether it came to that."""
    left = line

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != checkpoint.__file__:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                raise DeathError
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        do()
    except DeathError:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # the dead close nothing
@pytest.mark.parametrize(
    ("step", "died_before"), [(2, False), (1, False), (1, True)], ids=["next step", "same step", "same step, again"]
)
def test_death_before_any_line_leaves_a_whole_one(
    tmp_path: Path, step: int, died_before: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # for speed; another test is about it
    old = {"name": "old", "tensor": torch.ones(3)}
    new = {"name": "new", "tensor": torch.zeros(2)}
    start = tmp_path / "start"
    save(start, 1, old, keep=1)
    if died_before:  # after the tensor file, before the JSON file
        (start / "step-00000001-again.safetensors").write_bytes(b"the tensors of an earlier attempt")
    found_after = Counter[str]()
    for line in count():
        folder = shutil.copytree(start, tmp_path / str(line))
        died = dies_at(line, partial(save, folder, step, new, keep=1))
        found = newest(folder)
        assert found is not None, f"line {line}"
        assert same(found, (step, new)) or (died and same(found, (1, old))), f"line {line}"
        assert not caplog.records, "nothing half done is in sight"
        found_after[found[1]["name"]] += 1
        save(folder, 9, new, keep=1)
        assert names(folder) == ["step-00000009.json", "step-00000009.safetensors"], "the leftovers are swept"
        shutil.rmtree(folder)
        if not died:
            break
    assert min(found_after["old"], found_after["new"]) > 10


def test_files_are_synced_before_they_count_and_go_in_order(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sizes: dict[str, int] = {}
    sync, rename, unlink = os.fsync, os.replace, Path.unlink

    def fsync(fd: int) -> None:
        name = {file.stat().st_ino: file.name for file in [*two.iterdir(), two]}[os.fstat(fd).st_ino]
        done.append(f"sync {name.replace(two.name, 'folder')}")
        sizes[name.removesuffix(".tmp")] = os.fstat(fd).st_size
        sync(fd)

    def replace(old: Path, new: Path) -> None:
        done.append(f"rename to {new.name}")
        rename(old, new)

    def gone(file: Path) -> None:
        done.append(f"remove {file.name}")
        unlink(file)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(Path, "unlink", gone)
    save(two, 3, NEW, keep=2)
    assert done == [
        "sync step-00000003.safetensors.tmp",
        "rename to step-00000003.safetensors",
        "sync folder",
        "sync step-00000003.json.tmp",
        "rename to step-00000003.json",
        "sync folder",
        "remove step-00000001.json",
        "remove step-00000001.safetensors",
    ]
    for name in ("step-00000003.safetensors", "step-00000003.json"):
        assert sizes[name] == (two / name).stat().st_size, "all of it was written when it was synced"


SAVES_UNTIL_KILLED = """
import os, sys
from pathlib import Path
import torch
from zeno.training.checkpoint import newest, save

torch.set_num_threads(1)
folder = Path(sys.argv[1])
print("ready", flush=True)
while sys.stdin.readline():
    child = os.fork()
    if child:
        print("started", child, flush=True)
        os.waitpid(child, 0)
        print("ended", flush=True)
        continue
    found = newest(folder)
    step = found[0] if found else 0
    while True:
        step += 1
        for attempt in (1, 2):
            value = float(2 * step + attempt)
            parts = [torch.full((n,), value) for n in (300_000, 7)]
            save(folder, step, {"attempt": attempt, "text": str(value) * 1000, "parts": parts}, keep=1)
            os.write(1, f"saved {step} {attempt}\\n".encode())
"""


def test_a_killed_process_loses_nothing_that_it_had_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One process stays and forks those that are killed, so that torch is imported once."""
    draw = random.Random()
    left_behind = 0
    command = [sys.executable, "-c", SAVES_UNTIL_KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        last = (0, 0)
        for _ in range(20):
            parent.stdin.write("go\n")
            parent.stdin.flush()
            lines = [parent.stdout.readline(), parent.stdout.readline()]  # started, and one that was saved
            (child,) = (int(line.split()[1]) for line in lines if line.startswith("started"))
            time.sleep(draw.uniform(0, 0.05))
            os.kill(child, signal.SIGKILL)
            lines += iter(parent.stdout.readline, "ended\n")
            saved = [(int(line.split()[1]), int(line.split()[2])) for line in lines if line.startswith("saved")]
            assert saved == sorted(saved)
            assert saved[0] == (last[0] + 1, 1), "it went on where the one before was"
            found = newest(tmp_path)
            assert found is not None
            step, state = found
            last = (step, state["attempt"])
            assert last >= saved[-1]
            value = float(2 * step + state["attempt"])
            expected = {"attempt": state["attempt"], "text": str(value) * 1000}
            assert same(state, expected | {"parts": [torch.full((n,), value) for n in (300_000, 7)]})
            left_behind += len(names(tmp_path)) > 2
        parent.stdin.close()
    assert not caplog.records, "what is there is whole"
    assert left_behind, "some were killed while they saved"
