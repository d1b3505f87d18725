"""What a training run needs to go on after its process died: its state on the disk, whole or not at all.

A checkpoint is two files: `step-00000250.safetensors` has the tensors of the state, `step-00000250.json` all the rest.
Each is written under a temporary name, synced and then renamed, the JSON file last: it is there only when all of the
checkpoint is. It names its tensor file with length and hash, and ends with a hash of itself, so that later damage is
found too. Nothing in use is written over: when a step is saved again, its tensor file gets another name.

No pickle: a state is a tree of dict, list, tuple, None, bool, int, float, str and tensors, and reading it runs no code.
One process at a time saves in a folder.
"""

import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor

State: TypeAlias = Mapping[str, Any]

FORM = 1  # of the files. Every form is JSON that ends with the hash

log = logging.getLogger("zeno")

_FILE = re.compile(r"step-([0-9]{8,})(-again)?\.(json|safetensors)(\.tmp)?")
_SEAL = ',"sha256":"%s"}\n'  # the end of a JSON file: the hash of all before it
_PIECE = 1 << 20  # bytes that are read at a time
_DEEPEST = 100


def save(folder: Path, step: int, state: State, keep: int = 2) -> Path:
    """Writes a checkpoint after `step` steps; returns its JSON file. The newest `keep` stay.

    This one is the newest. Those of later steps go, as they belong to a course that the run did not take again.
    Tensors are saved from wherever they are; a Parameter becomes a plain tensor, and tensors that share
    memory become separate ones. Subclasses of dict, of numbers and of str become the plain type, numpy's scalars too.
    All else, named tuples included, is refused before anything is written.
    """
    if step < 0 or keep < 1:
        raise ValueError(f"A checkpoint needs step >= 0 and keep >= 1. Found step {step} and keep {keep}.")
    tensors: list[Tensor] = []
    tree = _encoded(dict(state), "", 0, tensors)
    folder.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    file, *tensor_files = _files(folder, step)
    tensor_file = next((f for f in tensor_files if not f.exists()), tensor_files[0])  # both: the JSON file is damaged
    size, digest = _put(tensor_file, safetensors.torch.save(_apart(tensors)))
    content = {
        "form": FORM,
        "step": step,
        "tensors": {"file": tensor_file.name, "bytes": size, "sha256": digest},
        "tree": tree,
    }
    _put(file, _sealed(content))
    steps = _steps(folder)
    at = steps.index(step)
    for later in steps[at + 1 :]:
        log.warning("The checkpoint of step %d in %s is removed: the run is at step %d again.", later, folder, step)
    for other in steps[: max(at + 1 - keep, 0)] + steps[at + 1 :]:
        _files(folder, other)[0].unlink()
    _sweep(folder)
    return file


def newest(folder: Path, most: int | None = None) -> tuple[int, dict[str, Any]] | None:
    """The newest checkpoint that is whole: (steps done, state), all on the CPU; None when there is none.

    What is torn or corrupt is passed over, and a warning says why. So is what comes after `most` steps: a run whose
    records end there cannot go on from it.
    """
    for step in reversed(_steps(folder)):
        try:
            if most is not None and step > most:
                raise _DamagedError(f"there are records of {most} steps only")
            return step, _load(folder, step)
        except _DamagedError as damage:
            reason = str(damage)
        except Exception as error:  # whatever is in the files, the one before may be whole
            reason = f"it cannot be read ({type(error).__name__}: {error})"
        log.warning("The checkpoint of step %d in %s is passed over: %s.", step, folder, reason)
    return None


class _DamagedError(Exception):
    """A checkpoint is not what was written; the text says in which way."""


def _files(folder: Path, step: int) -> tuple[Path, Path, Path]:
    """The JSON file, and the two names that its tensor file can have."""
    stem = f"step-{step:08d}"
    return folder / f"{stem}.json", folder / f"{stem}.safetensors", folder / f"{stem}-again.safetensors"


def _steps(folder: Path) -> list[int]:
    """The steps that have a JSON file, in order."""
    return sorted(step for file, step in _ours(folder) if file == _files(folder, step)[0])


def _ours(folder: Path) -> Iterator[tuple[Path, int]]:
    """Each file of a checkpoint, also those with a temporary name, with its step."""
    for file in list(folder.iterdir()) if folder.is_dir() else []:
        match = _FILE.fullmatch(file.name)
        if match and file.is_file():
            yield file, int(match[1])


def _sweep(folder: Path) -> None:
    """Removes what killed processes left: temporary files, and tensor files that no JSON file names."""
    for file, step in _ours(folder):
        if file.suffix == ".tmp" or (file.suffix == ".safetensors" and file.name not in _tensor_names(folder, step)):
            file.unlink()


def _tensor_names(folder: Path, step: int) -> list[str]:
    """The tensor files that the JSON file of a step may need: when it is damaged, nobody knows which."""
    file, *tensor_files = _files(folder, step)
    if not file.is_file():
        return []
    try:
        return [_content(file)["tensors"]["file"]]
    except Exception:
        return [f.name for f in tensor_files]


def _put(file: Path, content: bytes) -> tuple[int, str]:
    """Writes a file so that it is whole or not there, even when the power fails; returns its length and hash."""
    temporary = file.with_name(file.name + ".tmp")
    with temporary.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name
    finally:
        os.close(folder)
    return len(content), hashlib.sha256(content).hexdigest()


def _apart(tensors: list[Tensor]) -> dict[str, Tensor]:
    """The tensors by their place in the list, each with memory of its own."""
    return {str(i): one.detach().cpu().clone(memory_format=torch.contiguous_format) for i, one in enumerate(tensors)}


def _sealed(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))[:-1]
    return (text + _SEAL % hashlib.sha256(text.encode()).hexdigest()).encode()


def _content(file: Path) -> dict[str, Any]:
    """What a JSON file holds, when that is what was written."""
    raw = file.read_bytes()
    if not raw.endswith(b"}\n"):
        raise _DamagedError(f"{file.name} is cut off")
    try:
        content = json.loads(raw)
    except ValueError as error:
        raise _DamagedError(f"{file.name} is not JSON ({error})") from None
    text = raw[: -len(_SEAL % ("0" * 64))]
    if raw != text + (_SEAL % hashlib.sha256(text).hexdigest()).encode():
        raise _DamagedError(f"{file.name} was changed after it was written: its hash is wrong")
    if content["form"] != FORM:
        found = f"it has form {content['form']}, and this version of zeno reads form {FORM}"
        raise _DamagedError(f"{found}. Use a newer zeno to read it")
    return dict(content)


def _load(folder: Path, step: int) -> dict[str, Any]:
    file, *tensor_files = _files(folder, step)
    content = _content(file)
    if content["step"] != step:
        raise _DamagedError(f"{file.name} is of step {content['step']}: it was renamed")
    written = content["tensors"]
    tensor_file = folder / written["file"]
    if tensor_file not in tensor_files:
        raise _DamagedError(f"{file.name} names the tensor file {written['file']!r}, which is not of this step")
    if not tensor_file.is_file():
        raise _DamagedError(f"{tensor_file.name} is missing")
    size = tensor_file.stat().st_size
    if size != written["bytes"]:
        raise _DamagedError(f"{tensor_file.name} has {size} bytes where {written['bytes']} were written")
    digest = hashlib.sha256()
    with tensor_file.open("rb") as pieces:
        for piece in iter(lambda: pieces.read(_PIECE), b""):
            digest.update(piece)
    if digest.hexdigest() != written["sha256"]:
        raise _DamagedError(f"{tensor_file.name} was changed after it was written: its hash is wrong")
    with safe_open(tensor_file, framework="pt") as tensors:
        state = _decoded(content["tree"], tensors)
    if not isinstance(state, dict):
        raise _DamagedError(f"{file.name} holds a {type(state).__name__} where a dict is needed")
    return state


def _encoded(value: Any, where: str, depth: int, tensors: list[Tensor]) -> Any:
    """The tree in terms of JSON, where each object has one entry, the kind of what it stands for; tensors go apart."""
    if depth > _DEEPEST:
        raise ValueError(
            f"A checkpoint holds at most {_DEEPEST} levels. Found more at {where[:40]}..., which may hold itself. "
            "Leave it out."
        )
    if isinstance(value, Tensor):
        return {"tensor": _place(value, where, tensors)}
    plain = value.item() if isinstance(value, np.generic) else value
    if plain is None or isinstance(plain, bool | str):
        return plain
    if isinstance(plain, int):
        return int(plain) if -(2**63) <= plain < 2**63 else {"int": hex(plain)}  # Python may refuse longer decimals
    if isinstance(plain, float):
        return plain if math.isfinite(plain) else {"float": repr(float(plain))}
    if isinstance(plain, dict):
        pairs = [
            (_key(key, where), _encoded(entry, _inside(where, key), depth + 1, tensors)) for key, entry in plain.items()
        ]
        return {"dict": pairs}
    if type(plain) is list or type(plain) is tuple:  # a subclass, such as a named tuple, has more than its entries
        entries = [_encoded(entry, f"{where}[{i}]", depth + 1, tensors) for i, entry in enumerate(plain)]
        return entries if type(plain) is list else {"tuple": entries}
    raise _refusal(f"Found {type(value).__name__}", where)


def _key(key: Any, where: str) -> Any:
    if not isinstance(key, str | int | np.integer):
        raise _refusal(f"Found a dict with the key {key!r}, which is neither text nor int,", where)
    return _encoded(key, where, 0, [])


def _inside(where: str, key: Any) -> str:
    if isinstance(key, str) and key.isidentifier():
        return f"{where}.{key}" if where else key
    return f"{where}[{str(key)!r}]" if isinstance(key, str) else f"{where}[{key}]"


def _place(tensor: Tensor, where: str, tensors: list[Tensor]) -> int:
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        raise _refusal(f"Found a tensor of the class {type(tensor).__name__}", where)
    if tensor.layout != torch.strided or tensor.is_meta or tensor.dtype.is_complex:
        raise _refusal(f"Found a tensor with {tensor.dtype}, {tensor.layout}, on {tensor.device}", where)
    tensors.append(tensor)
    return len(tensors) - 1


def _refusal(found: str, where: str) -> ValueError:
    return ValueError(
        f"A checkpoint holds tensors, numbers, text, lists and dicts. {found} at {where or 'the top'}. "
        "Turn it into one of these, or leave it out."
    )


def _decoded(value: Any, tensors: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(entry, tensors) for entry in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "tensor":
        return tensors.get_tensor(str(inner)).clone()  # in memory: the file may go
    if kind == "dict":
        return {_decoded(key, tensors): _decoded(entry, tensors) for key, entry in inner}
    if kind == "tuple":
        return tuple(_decoded(entry, tensors) for entry in inner)
    if kind == "int":
        return int(inner, 16)
    if kind == "float":
        return float(inner)
    raise _DamagedError(f"it holds something unknown, a {kind}")
