"""A run continues from an intact checkpoint, whatever happened to the process and to the files."""

import hashlib
import io
import logging
import os
import pickle
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
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedulers

from zeno.records import files
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
    """Why step 2 was skipped; step 1 must be found."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "zeno"):
        found = newest(folder)
    assert found is not None
    assert found[0] == 1
    assert same(found[1], OLD)
    (record,) = caplog.records
    assert record.name == "zeno"
    before, why = record.getMessage().split(" is skipped: ")
    assert before == f"The checkpoint of step 2 in {folder}"
    return why


FILE = "step-00000002.pt"


def sealed(content: bytes) -> bytes:
    return content + hashlib.sha256(content).digest()


def forge(folder: Path, **changes: Any) -> None:
    """Writes the checkpoint of step 2 anew, with the right hash, as an attacker can."""
    content = torch.load(folder / FILE, weights_only=True) | changes
    raw = io.BytesIO()
    torch.save(content, raw)
    (folder / FILE).write_bytes(sealed(raw.getvalue()))


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
    assert same(back(state), state)


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
        -(2**1999),
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
    (tmp_path / "step-00000001.pt").write_bytes(b"")
    assert found is not None
    assert same(found[1], OLD)


def test_a_checkpoint_is_a_file_that_torch_loads(tmp_path: Path) -> None:
    mixed = [torch.tensor([True]), torch.arange(3.0), torch.arange(5, dtype=torch.float64)]
    file = save(tmp_path, 250, {"mixed": mixed})
    assert file == tmp_path / "step-00000250.pt"
    assert names(tmp_path) == ["step-00000250.pt"]
    assert same(torch.load(file, weights_only=True), {"form": 2, "step": 250, "state": {"mixed": mixed}})


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


# What cannot be saved

Pair = namedtuple("Pair", "first second")
HOLDS_ITSELF: list[Any] = []
HOLDS_ITSELF.append(HOLDS_ITSELF)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            {"optimizer": {"param_groups": [{"foo": lambda: 1}]}},
            r"Found a function at state\['optimizer'\]\['param_groups'\]\[0\]\['foo'\]\.",
        ),
        ({"a": {3: {"b.c": object()}}}, r"Found a object at state\['a'\]\[3\]\['b\.c'\]\."),
        ({"a": (1, {2})}, r"Found a set at state\['a'\]\[1\]\."),
        ({"a": b"raw"}, r"Found a bytes at "),
        ({"a": 1j}, r"Found a complex at "),
        ({"a": -(10**5000)}, r"Found a int of 16610 bits at "),
        ({"a": np.zeros(1)}, r"Found a ndarray at "),
        ({"a": np.longdouble(1)}, r"Found a longdouble at "),
        ({"a": np.datetime64(0, "s")}, r"Found a datetime at "),
        ({"a": Pair(1, 2)}, r"Found a Pair at "),
        ({"a": torch.Size([1])}, r"Found a Size at "),
        ({"a": {(1, 2): 3}}, r"Found the key \(1, 2\) at state\['a'\]\."),
        ({"a": {None: 3}}, r"Found the key None at state\['a'\]\."),
        ({"a": {0.5: 3}}, r"Found the key 0\.5 at state\['a'\]\."),
        ({0.5: 3}, r"Found the key 0\.5 at state\."),
        ({"a": torch.ones(2, device="meta")}, r"Found a Tensor of torch\.float32, torch\.strided, on meta at "),
        ({"a": torch.ones(2).to_sparse()}, r"torch\.sparse_coo, on cpu at "),
        ({"a": torch.ones(2, dtype=torch.complex128)}, r"Found a Tensor of torch\.complex128"),
        ({"a": nn.UninitializedParameter()}, r"Found a UninitializedParameter of "),
        ({"a": HOLDS_ITSELF}, r"contains itself"),
    ],
)
def test_what_cannot_be_saved_raises_and_nothing_is_written(
    tmp_path: Path, state: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        save(tmp_path / "new", 1, state)
    assert str(raised.value).startswith("A checkpoint ")
    assert names(tmp_path) == []


@pytest.mark.parametrize(("step", "keep"), [(-1, 1), (0, 0)])
def test_counts_that_make_no_sense_raise(tmp_path: Path, step: int, keep: int) -> None:
    with pytest.raises(ValueError, match=f"Found step {step} and keep {keep}"):
        save(tmp_path, step, {}, keep)


# Files that come and go


def test_without_a_checkpoint_there_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert newest(tmp_path / "nowhere") is None
    assert newest(tmp_path) is None
    (tmp_path / ".step-00000008.pt.new").write_bytes(b"killed while it was written")
    (tmp_path / "step-7.pt").write_bytes(b"not ours")
    (tmp_path / "step-000000007.pt").write_bytes(b"not ours")
    (tmp_path / "step-00000009.pt").mkdir()
    os.mkfifo(tmp_path / "step-00000010.pt")
    assert newest(tmp_path) is None
    assert not caplog.records, "none of these is a checkpoint"


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_stay(tmp_path: Path, keep: int) -> None:
    saved = []
    for step in [0, 5, 99999999, 100000000, 100000001]:  # nine digits sort after eight
        saved.append(f"step-{step:08d}")
        save(tmp_path, step, {"step": step, "tensor": torch.tensor(step)}, keep)
        assert names(tmp_path) == sorted(f"{s}.pt" for s in saved[-keep:])
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
    assert names(two) == ["step-00000002.pt"]


def test_a_step_can_be_saved_again_and_again(two: Path) -> None:
    before = names(two)
    states: list[dict[str, Any]] = [OLD, NEW, OLD, OLD]
    for kept in states:
        save(two, 2, kept)
        found = newest(two)
        assert found is not None
        assert same(found, (2, kept))
        assert names(two) == before


def test_a_damaged_one_can_be_saved_again(two: Path, caplog: pytest.LogCaptureFixture) -> None:
    (two / FILE).write_bytes(b"rubbish")
    save(two, 2, NEW)
    found = newest(two)
    assert found is not None
    assert same(found, (2, NEW))
    assert not caplog.records
    assert len(names(two)) == 2


def test_leftovers_are_removed_and_nothing_else(two: Path) -> None:
    leftovers = [".step-00000002.pt.new", ".step-00000003.pt.new", "step-00000003.safetensors"]
    others = ["model.safetensors", "records.jsonl", "other.pt.new", "step-3.pt", "step-00000003.txt"]
    for name in leftovers + others:
        (two / name).write_bytes(b"something")
    save(two, 4, NEW, keep=9)
    assert names(two) == sorted([f"step-0000000{step}.pt" for step in (1, 2, 4)] + others)


# Damage


def test_torn_files_are_skipped(two: Path, caplog: pytest.LogCaptureFixture) -> None:
    raw = (two / FILE).read_bytes()
    for length in range(len(raw)):
        (two / FILE).write_bytes(raw[:length])
        why = "was cut off or changed after it was written: its hash is wrong."
        assert reason(two, caplog) == f"{FILE} {why}"
    (two / FILE).write_bytes(raw + b"\n")
    assert FILE in reason(two, caplog)


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_every_flipped_bit_is_found(two: Path, caplog: pytest.LogCaptureFixture, every: int) -> None:
    raw = bytearray((two / FILE).read_bytes())
    draw = random.Random(5)
    for at in range(0, len(raw), every):
        flipped = raw.copy()
        flipped[at] ^= 1 << draw.randrange(8)
        (two / FILE).write_bytes(flipped)
        assert reason(two, caplog).endswith("its hash is wrong.")


def test_a_form_of_the_future_is_reported(two: Path, caplog: pytest.LogCaptureFixture) -> None:
    forge(two, form=3)
    assert reason(two, caplog) == f"{FILE} has form 3, and this version of zeno reads form 2."


def test_a_checkpoint_of_an_older_version_is_reported(two: Path, caplog: pytest.LogCaptureFixture) -> None:
    (two / FILE).unlink()
    (two / "step-00000002.json").write_text('{"form":1}')
    (two / "step-00000002.safetensors").write_bytes(b"tensors")
    assert reason(two, caplog) == "step-00000002.json has form 1, and this version of zeno reads form 2."
    save(two, 3, NEW)
    assert names(two) == ["step-00000001.pt", "step-00000003.pt"]


def test_a_renamed_file_is_reported(two: Path, caplog: pytest.LogCaptureFixture) -> None:
    (two / FILE).write_bytes((two / "step-00000001.pt").read_bytes())
    assert reason(two, caplog) == f"{FILE} is of step 1: it was renamed."


def test_when_none_is_whole_each_is_reported(two: Path, caplog: pytest.LogCaptureFixture) -> None:
    for step in (1, 2):
        (two / f"step-0000000{step}.pt").write_bytes(b"")
    assert newest(two) is None
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert [message.split(" in ")[0] for message in caplog.messages] == [
        "The checkpoint of step 2",
        "The checkpoint of step 1",
    ]


def test_forged_files_are_read_as_what_they_are(two: Path) -> None:
    forge(two, state={"a": 1})
    assert newest(two) == (2, {"a": 1}), "so the following files are skipped for their content, not for their hash"


@pytest.mark.parametrize(
    "changes", [{"state": 5}, {"state": [1]}, {"state": None}, {"form": None}, {"form": {}}, {"step": "2"}], ids=str
)
def test_forged_content_is_skipped(two: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any]) -> None:
    forge(two, **changes)
    assert reason(two, caplog)


class Attack:
    """Runs a command when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.file}",)


def test_reading_a_checkpoint_runs_no_code(two: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    forge(two, state={"a": Attack(tmp_path / "harm")})
    assert reason(two, caplog) == f"{FILE} holds something other than tensors and plain values."
    (two / FILE).write_bytes(sealed(pickle.dumps(Attack(tmp_path / "harm"))))  # as older versions of torch save
    assert reason(two, caplog)
    assert not (tmp_path / "harm").exists()


@given(st.binary(max_size=64), st.booleans())
@settings(max_examples=40, deadline=None)
def test_rubbish_with_the_right_hash_is_skipped(raw: bytes, as_zip: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(folder, 1, OLD)
        save(folder, 2, NEW)
        content = (folder / FILE).read_bytes()
        at = len(content) // 2
        (folder / FILE).write_bytes(sealed(content[:at] + raw if as_zip else raw))
        found = newest(folder)
        assert found is not None
        assert same(found, (1, OLD))


# Death


class DeathError(BaseException):
    """The process ends here."""


def dies_at(line: int, do: Callable[[], Any]) -> bool:
    """Runs `do` and ends it before the n-th line of the modules that save; whether it came to that."""
    left = line

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in (checkpoint.__file__, files.__file__):
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
    if died_before:
        (start / ".step-00000001.pt.new").write_bytes(b"the half of an earlier attempt")
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
        assert names(folder) == ["step-00000009.pt"], "the leftovers are removed"
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
        sizes[name] = os.fstat(fd).st_size
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
        "sync .step-00000003.pt.new",
        "rename to step-00000003.pt",
        "sync folder",
        "remove step-00000001.pt",
    ]
    size = (two / "step-00000003.pt").stat().st_size
    assert sizes[".step-00000003.pt.new"] == size, "all of it was written when it was synced"


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
            left_behind += len(names(tmp_path)) > 1
        parent.stdin.close()
    assert not caplog.records, "what is there is whole"
    assert left_behind, "some were killed while they saved"
