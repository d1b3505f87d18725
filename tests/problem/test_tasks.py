"""Tasks read the forms that data sets are published in, and say what is wrong with what they find."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import zeno
from zeno.problem import tasks


def write_idx(path: Path, values: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> None:
    content = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_mnist(folder: Path, suffix: str = "") -> None:
    for prefix, n in (("train", 6), ("t10k", 4)):
        pixels = np.arange(n * 28 * 28).reshape(n, 28, 28).astype(np.uint8)
        write_idx(folder / f"{prefix}-images-idx3-ubyte{suffix}", pixels)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte{suffix}", np.arange(n).astype(np.uint8))


def write_cifar10(folder: Path, n: int = 5) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for k, name in enumerate([f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]):
        labels = np.full((n, 1), k, dtype=np.uint8)
        planes = np.repeat(np.array([10, 20, 30], dtype=np.uint8), 1024)[None].repeat(n, axis=0)
        np.concatenate([labels, planes], axis=1).tofile(folder / f"{name}.bin")


def test_digits_are_shipped_and_are_the_known_data_set() -> None:
    task = tasks.load_task("digits")
    assert (len(task.train), len(task.test), task.train.classes) == (1437, 360, 10)
    assert task.train.inputs.shape[1:] == (1, 8, 8)
    assert task.train.inputs.dtype == torch.uint8
    counts = torch.cat([task.train.targets, task.test.targets]).bincount().tolist()
    assert counts == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # as published
    batch = task.train.batch(torch.arange(100))
    assert batch.inputs.min() == 0
    assert batch.inputs.max() == 1


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_is_read_from_idx_files(tmp_path: Path, suffix: str) -> None:
    write_mnist(tmp_path, suffix)
    task = tasks.load_task("mnist", tmp_path)
    assert task.train.inputs.shape == (6, 1, 28, 28)
    assert task.train.inputs[0, 0, 0, :3].tolist() == [0, 1, 2]
    assert task.test.targets.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("folder", [".", "cifar-10-batches-bin"])
def test_cifar10_is_read_from_the_binary_version(tmp_path: Path, folder: str) -> None:
    write_cifar10(tmp_path / folder)
    task = tasks.load_task("cifar10", tmp_path)
    assert task.train.inputs.shape == (25, 3, 32, 32)
    assert task.train.inputs[7, :, 5, 5].tolist() == [10, 20, 30]
    assert task.train.targets[::5].tolist() == [0, 1, 2, 3, 4]
    assert task.test.targets.tolist() == [5] * 5


def test_pictures_of_cifar10_can_be_smaller(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    path = tmp_path / "data_batch_1.bin"
    content = np.fromfile(path, dtype=np.uint8)
    # The first row of squares of the first picture: 10, 10, 10, 10 becomes 1, 2, 10, 10, whose mean is 5.75.
    content[[1, 2]] = 1, 2
    content.tofile(path)
    task = tasks.load_task("cifar10(size=16)", tmp_path)
    assert task.train.inputs.shape == (25, 3, 16, 16)
    assert task.test.inputs.shape == (5, 3, 16, 16)
    assert task.train.inputs.dtype == torch.uint8
    assert task.train.inputs[0, :, 0, 0].tolist() == [6, 20, 30]
    assert task.train.inputs[0, :, 0, 1].tolist() == [10, 20, 30]
    assert task.train.targets[::5].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match=r"The task cifar10 needs size as 8, 16 or 32\. Found size=12\."):
        tasks.load_task("cifar10(size=12)", tmp_path)


def test_the_model_of_a_task_can_be_replaced(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    task = tasks.with_model(tasks.load_task("cifar10", tmp_path), "small_cnn")
    assert zeno.Problem(task.model()).size < 1_310_922 / 12
    without_dropout = tasks.with_model(task, "cnn(width=8, dropout=0)").model()
    assert {m.p for m in without_dropout.modules() if isinstance(m, torch.nn.Dropout)} == {0}
    assert sum(isinstance(m, torch.nn.Dropout) for m in task.model().modules()) == 3


def test_missing_files_say_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"data_batch_1.bin in .*zeno data cifar10.*--data"):
        tasks.load_task("cifar10", tmp_path)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("cut", [2, 10, 100])
def test_incomplete_idx_files_raise(tmp_path: Path, cut: int, suffix: str) -> None:
    write_mnist(tmp_path, suffix)
    path = tmp_path / f"train-images-idx3-ubyte{suffix}"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match="not a complete IDX file"):
        tasks.load_task("mnist", tmp_path)


def test_incomplete_or_wrong_cifar10_files_raise(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    path = tmp_path / "data_batch_3.bin"
    for content in (path.read_bytes()[:-1], b"", bytes([200]) + path.read_bytes()[1:]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"data_batch_3.bin is not a complete CIFAR-10 file"):
            tasks.load_task("cifar10", tmp_path)


def test_a_custom_task_is_found_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_tasks.py").write_text(
        "import torch, zeno\n"
        "def line():\n"
        "    data = zeno.Dataset(torch.rand(50, 2), torch.rand(50, 1))\n"
        "    return zeno.Task(data, data, lambda: torch.nn.Linear(2, 1), torch.nn.functional.mse_loss)\n"
        "def nothing():\n"
        "    return None\n"
    )
    monkeypatch.chdir(tmp_path)
    records = zeno.train(zeno.Run(task="my_tasks:line", workers=3, rule=zeno.Mean(), steps=20))
    assert records[-1].accuracy is None
    assert records[-1].train_loss is not None
    with pytest.raises(ValueError, match=r"needs to return a zeno.Task. Found NoneType"):
        tasks.load_task("my_tasks:nothing")


@pytest.mark.parametrize(
    "name",
    ["no_such_module:f", "zeno.tasks:no_such_function", ".relative:f", "broken:f", "raising:f", "zeno.tasks:load"],
)
def test_a_task_that_cannot_be_imported_raises(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "raising.py").write_text("raise RuntimeError('no')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"Cannot load the task '{name}'"):
        tasks.load_task(name)


def test_a_task_with_random_data_is_the_same_in_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "drawn.py").write_text(
        "import torch, zeno\n"
        "def task():\n"
        "    data = zeno.Dataset(torch.randn(50, 2), torch.randint(2, (50,)), classes=2)\n"
        "    return zeno.Task(data, data, lambda: torch.nn.Linear(2, 2))\n"
    )
    monkeypatch.chdir(tmp_path)
    run = zeno.Run(task="drawn:task", workers=3, rule=zeno.Mean(), steps=2)
    assert zeno.train(run) == zeno.train(run)


def test_an_unknown_task_gets_a_hint() -> None:
    with pytest.raises(ValueError, match=r"Unknown task 'cifar'. Did you mean cifar10"):
        tasks.load_task("cifar")
