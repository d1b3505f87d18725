"""Checkpoints: the state of a training run on disk, complete or absent.

A checkpoint is one file, `step-00000250.pt`: what `torch.save` writes, followed by its SHA-256 hash, which reveals
damage. `torch.load(weights_only=True)` reads it, so reading runs no code. One process at a time may save in a folder.
"""

import hashlib
import io
import logging
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zeno.records.files import read_file, write_atomically

FORM = 2  # of the content. Form 1 was a JSON file and a safetensors file

log = logging.getLogger("zeno")

_FILE = re.compile(r"\.?step-([0-9]{8,})(-again)?\.(pt|json|safetensors)(\..+)?")  # of form 1 and temporary ones too
_HASH_BYTES = 32
_MOST_BITS = 2000  # of an int: torch.load reads up to 255 bytes


def save(folder: Path, step: int, state: Mapping[str, Any], keep: int = 2) -> Path:
    """Writes a checkpoint after `step` steps and returns its file. The newest `keep` checkpoints stay.

    Checkpoints of later steps are removed: the run has gone back to this step. A state is a tree of dict, list, tuple,
    None, bool, int, float, str and tensors on any device. Parameters become tensors, tensors that share memory become
    separate, subclasses of dict, numbers and str become the plain type. Anything else raises before a file is written.
    """
    if step < 0 or keep < 1:
        raise ValueError(f"A checkpoint needs step >= 0 and keep >= 1. Found step {step} and keep {keep}.")
    content = io.BytesIO()
    try:
        torch.save({"form": FORM, "step": step, "state": _plain(dict(state), "state")}, content)
    except RecursionError:
        raise ValueError("A checkpoint cannot hold a value that contains itself, or is nested too deeply.") from None
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"step-{step:08d}.pt"
    write_atomically(file, content.getvalue() + hashlib.sha256(content.getvalue()).digest(), sync=True)

    kept = [one for n, one in _checkpoints(folder) if n <= step and one.suffix == ".pt"][-keep:]
    for number, one in _files(folder):
        if number > step and one.name == f"step-{number:08d}.pt":
            log.warning(
                "The checkpoint of step %d in %s is removed: the run is at step %d again.", number, folder, step
            )
        if one not in kept:  # also what killed processes left behind
            one.unlink()
    return file


def newest(folder: Path, most: int | None = None) -> tuple[int, dict[str, Any]] | None:
    """The newest intact checkpoint as (steps done, state), with all tensors on the CPU; None if there is none.

    Damaged checkpoints are skipped with a warning that says why. So are those after `most` steps: a run whose records
    end there cannot continue from them.
    """
    for step, file in reversed(_checkpoints(folder)):
        try:
            if most is not None and step > most:
                raise ValueError(f"there are records of {most} steps only")
            return step, _load(file, step)
        except ValueError as error:
            reason = str(error)
        except pickle.UnpicklingError:
            reason = f"{file.name} holds something other than tensors and plain values"
        except Exception as error:  # whatever is in the file, an earlier one may be intact
            reason = f"{file.name} cannot be read ({type(error).__name__}: {error})"
        log.warning("The checkpoint of step %d in %s is skipped: %s.", step, folder, reason)
    return None


def _files(folder: Path) -> list[tuple[int, Path]]:
    """All files of checkpoints by step, including temporary files and those of older versions."""
    matches = [(_FILE.fullmatch(file.name), file) for file in (folder.iterdir() if folder.is_dir() else ())]
    return sorted((int(match[1]), file) for match, file in matches if match and file.is_file())


def _checkpoints(folder: Path) -> list[tuple[int, Path]]:
    return [(n, file) for n, file in _files(folder) if file.name in (f"step-{n:08d}.pt", f"step-{n:08d}.json")]


def _load(file: Path, step: int) -> dict[str, Any]:
    content: dict[str, Any] = {"form": 1}
    if file.suffix == ".pt":
        raw = read_file(file)
        if hashlib.sha256(raw[:-_HASH_BYTES]).digest() != raw[-_HASH_BYTES:]:
            raise ValueError(f"{file.name} was cut off or changed after it was written: its hash is wrong")
        content = torch.load(io.BytesIO(raw[:-_HASH_BYTES]), map_location="cpu", weights_only=True)
    if content["form"] != FORM:
        raise ValueError(f"{file.name} has form {content['form']}, and this version of zeno reads form {FORM}")
    if content["step"] != step:
        raise ValueError(f"{file.name} is of step {content['step']}: it was renamed")
    return dict(content["state"])


def _plain(value: Any, where: str) -> Any:
    """A copy of plain types only, with each tensor in separate memory on the CPU."""
    value = value.item() if isinstance(value, np.generic) else value
    found = f"a {type(value).__name__}"
    if isinstance(value, Tensor):
        dense = value.layout == torch.strided and not value.is_meta and not value.dtype.is_complex
        if dense and type(value) in (Tensor, nn.Parameter):
            return value.detach().cpu().resolve_neg().clone(memory_format=torch.contiguous_format)
        found += f" of {value.dtype}, {value.layout}, on {value.device}"
    elif value is None or isinstance(value, bool):
        return value
    elif isinstance(value, float | str):
        return float(value) if isinstance(value, float) else str.__str__(value)
    elif isinstance(value, int):
        if value.bit_length() <= _MOST_BITS:
            return int(value)
        found += f" of {value.bit_length()} bits"
    elif isinstance(value, dict):
        odd = [key for key in value if not isinstance(key, str | int | np.integer)]
        if not odd:
            return {_plain(key, where): _plain(entry, f"{where}[{key!r}]") for key, entry in value.items()}
        found = f"the key {odd[0]!r}"
    elif type(value) in (list, tuple):  # a subclass, such as a named tuple, has more than its entries
        return type(value)(_plain(entry, f"{where}[{i}]") for i, entry in enumerate(value))
    raise ValueError(
        "A checkpoint holds tensors, numbers, text, lists, tuples and dicts with keys of text or int. "
        f"Found {found} at {where}. Convert it to one of these, or leave it out."
    )
