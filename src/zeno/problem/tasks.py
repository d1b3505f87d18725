"""Tasks: a model, a loss, and the data to train and test on.

`digits` is shipped with the package. `mnist` and `cifar10` are read from a folder, in the formats in which they are
published: IDX files (plain or gzipped) and the binary version of CIFAR-10.
"""

import gzip
import importlib
import math
import os
import struct
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zeno.problem.dataset import Dataset, generator
from zeno.problem.download import data_folder
from zeno.problem.losses import Loss
from zeno.problem.models import MODELS
from zeno.problem.registry import build


@dataclass(frozen=True, eq=False)
class Task:
    """A model, a loss, and data. A custom task is a function without arguments that returns a Task."""

    train: Dataset
    test: Dataset
    model: Callable[[], nn.Module]  # returns a new one at every call, initialised under the run's seed
    loss: Loss = F.cross_entropy  # the mean over the samples; an nn.Module if it has tensors


def load_task(name: str | Callable[[], Task], data: Path | None = None) -> Task:
    """Returns the task with this name, or the one that a function or `package.module:function` returns."""
    if isinstance(name, str) and ":" not in name:
        return build("task", name, TASKS, overrides={"data": data})
    sys.path.insert(0, os.getcwd())  # as `python -m` does, to find modules in the working folder
    try:
        task = _imported(name)() if isinstance(name, str) else name()
    except Exception as error:
        raise ValueError(f"Cannot load the task {name!r}: {type(error).__name__}: {error}.") from error
    finally:
        sys.path.pop(0)
    if not isinstance(task, Task):
        raise ValueError(f"The task {name!r} needs to return a zeno.Task. Found {type(task).__name__}.")
    return task


def _imported(name: str) -> Callable[[], object]:
    module, _, function = name.partition(":")
    found: Callable[[], object] = getattr(importlib.import_module(module), function)
    return found


def with_model(task: Task, model: str) -> Task:
    """Returns the task with another network, one of MODELS, such as `small_cnn` or `small_cnn(dropout=0)`."""
    if task.train.classes is None:
        raise ValueError(f"The model {model!r} needs a task with class labels. Found a task without class labels.")
    made_for = {"shape": task.train.inputs.shape[1:], "classes": task.train.classes}
    return replace(task, model=lambda: build("model", model, MODELS, overrides=made_for))


def on_device(task: Task, device: torch.device) -> Task:
    """Returns the task with its data on a device. Models are initialised on the CPU, so that they start the same."""
    loss = task.loss.to(device) if isinstance(task.loss, nn.Module) else task.loss
    train, test = task.train.to(device), task.test.to(device)
    return replace(task, train=train, test=test, model=lambda: task.model().to(device), loss=loss)


def digits(data: Path | None = None) -> Task:
    """8x8 pictures of handwritten digits, shipped with the package; an MLP."""
    folder = Path(__file__).parent / "digits"
    images, labels = _idx(folder / "images-idx3-ubyte.gz")[:, None], _idx(folder / "labels-idx1-ubyte.gz").long()
    order = torch.from_numpy(generator(0, "digits").permutation(len(labels)))  # the file is ordered by writer
    parts = order[:1_437], order[1_437:]  # 4 of 5 are for training
    return _classifier("mlp", *(Dataset(images[part], labels[part], classes=10, scale=1 / 16) for part in parts))


def mnist(data: Path | None = None) -> Task:
    """28x28 pictures of handwritten digits, from IDX files; an MLP."""
    folder = data or data_folder() / "mnist"

    def part(prefix: str) -> Dataset:
        images = _idx(_file("mnist", folder, f"{prefix}-images-idx3-ubyte"))
        labels = _idx(_file("mnist", folder, f"{prefix}-labels-idx1-ubyte"))
        return Dataset(images[:, None], labels.long(), 10)

    return _classifier("mlp", part("train"), part("t10k"))


def cifar10(data: Path | None = None, size: int = 32) -> Task:
    """32x32 colour pictures of ten kinds of objects, from the binary version; the paper's CNN.

    With a `size` of 16 or 8, each pixel is the mean of a square of pixels, and training is 4 or 16 times as fast.
    """
    if size not in (8, 16, 32):
        raise ValueError(f"The task cifar10 needs size as 8, 16 or 32. Found size={size!r}.")
    folder = data or data_folder() / "cifar10"
    if (folder / "cifar-10-batches-bin").is_dir():
        folder = folder / "cifar-10-batches-bin"
    train = [_file("cifar10", folder, f"data_batch_{k}.bin") for k in range(1, 6)]
    test = [_file("cifar10", folder, "test_batch.bin")]
    return _classifier("cnn", *(_smaller(_cifar10_records(paths), size) for paths in (train, test)))


TASKS: dict[str, Callable[..., Task]] = {"digits": digits, "mnist": mnist, "cifar10": cifar10}
"""Tasks by name, as on the command line and in TOML files."""


def _smaller(pictures: Dataset, size: int) -> Dataset:
    """The pictures with `size` pixels a side, each the mean of a square, rounded to a byte."""
    if size == pictures.inputs.shape[-1]:
        return pictures
    squares = pictures.inputs.unflatten(-1, (size, -1)).unflatten(-3, (size, -1))  # [n, channels, size, k, size, k]
    parts = [part.float().mean(dim=(3, 5)).round().byte() for part in squares.split(5_000)]
    return replace(pictures, inputs=torch.cat(parts))


def _classifier(model: str, train: Dataset, test: Dataset) -> Task:
    return with_model(Task(train, test, nn.Identity), model)


def _file(task: str, folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"The task {task} needs the file {name} in {folder}. Found none. "
        f"Download it with `zeno data {task}`, or point --data at the folder that has it."
    )


def _idx(path: Path) -> Tensor:
    """An IDX file: two zero bytes, 08 for bytes, the number of axes, their sizes as big-endian words, the bytes."""
    content = path.read_bytes()
    try:
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        axes = content[3]
        shape = struct.unpack_from(f">{axes}I", content, 4)
        values = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes)
        if content[:3] == b"\x00\x00\x08" and values.size == math.prod(shape):
            return torch.from_numpy(values.reshape(shape).copy())
    except (EOFError, OSError, IndexError, ValueError, struct.error, zlib.error):
        pass
    raise ValueError(f"{path} is not a complete IDX file of bytes. Found {len(content)} bytes. Download it again.")


def _cifar10_records(paths: Sequence[Path]) -> Dataset:
    """Records of 1 label byte and 3,072 bytes of red, green and blue planes."""
    contents = [np.fromfile(path, dtype=np.uint8) for path in paths]
    for path, content in zip(paths, contents, strict=True):
        if content.size == 0 or content.size % 3073 or content[::3073].max() > 9:
            raise ValueError(f"{path} is not a complete CIFAR-10 file. Found {content.size} bytes. Download it again.")
    records = np.concatenate(contents).reshape(-1, 3073)
    pictures = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy())
    return Dataset(pictures, torch.from_numpy(records[:, 0].astype(np.int64)), 10)
