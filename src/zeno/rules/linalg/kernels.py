"""The sorting networks of `sorting_network`, fused by the compiler into one pass over memory.

A compiled kernel is several times faster than the same network row by row, but takes half a minute to compile. So a
rule starts without one. Once a network has used enough time to be worth it, a background process compiles the kernel.
From then on it is loaded from the cache in milliseconds, in this process and in later ones. Results do not depend on
it: both forms give the same bits. ZENO_COMPILE=0 turns compilation off.
"""

import atexit
import hashlib
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from zeno.rules.linalg import passes, sorting_network
from zeno.rules.linalg.sorting_network import Columns

log = logging.getLogger("zeno")

Kernel = Callable[[Sequence[Tensor]], Tensor]
"""n rows [d] -> [d]."""

MOST_ROWS = 32  # networks of more rows take minutes to compile
LEAST_NUMBERS = 1_000_000  # fewer are processed before a kernel has started its threads
WORTH_SECONDS = 5.0  # spent on a network before it is compiled
PIECE = 1 << 20  # columns in one call of a kernel
SETTINGS = {"max_fusion_size": 1_000_000, "cpp.dynamic_threads": True}  # one loop, on as many threads as torch has

_spent: dict[tuple[Columns, int], float] = {}
_making: dict[tuple[Columns, int], "subprocess.Popen[bytes]"] = {}


def suits(candidates: Tensor) -> bool:
    """Whether there can be a kernel for such candidates."""
    return (
        os.environ.get("ZENO_COMPILE") != "0"
        and candidates.device.type == "cpu"
        and candidates.dtype == torch.float32
        and candidates.stride(1) == 1
        and candidates.numel() >= LEAST_NUMBERS
        and 3 <= len(candidates) <= MOST_ROWS
    )


def find(columns: Columns, n: int) -> Kernel | None:
    """The kernel for n rows, if it has been compiled."""
    try:
        path = _path(columns, n)
        return _load(path) if path.exists() else None
    except (OSError, RuntimeError):  # no home folder, or no permission to read it
        return None


def note(columns: Columns, n: int, seconds: float) -> None:
    """Adds up the time that a network takes without a kernel, and starts compiling once that is worth it."""
    total = _spent[columns, n] = _spent.get((columns, n), 0.0) + seconds
    if total > WORTH_SECONDS and (columns, n) not in _making:
        try:
            start(columns, n)
            log.info("compiling %s of %d rows in the background, once for this machine", columns.formula, n)
        except (OSError, RuntimeError) as error:
            log.warning("going on without compiled kernels: %s. Name a folder for them with ZENO_CACHE.", error)
            _spent.clear()
            os.environ["ZENO_COMPILE"] = "0"


def start(columns: Columns, n: int) -> "subprocess.Popen[bytes]":
    """Starts to compile a kernel; when the process has succeeded, `find` returns it."""
    path = _path(columns, n)
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", __name__, columns.formula, str(columns.trim), str(n), str(path)]
    with path.with_suffix(".log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    _making[columns, n] = process
    atexit.register(process.terminate)
    return process


def _path(columns: Columns, n: int) -> Path:
    """The file of a kernel, beside others that this machine can load."""
    folder = os.environ.get("ZENO_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "zeno"
    return Path(folder) / "kernels" / _version() / f"{columns.formula}-{n}-{columns.trim}.pt2"


@cache
def _version() -> str:
    """The processor, torch, and a hash of the source code: a kernel that was made for others is never loaded."""
    source = Path(__file__).read_bytes() + Path(sorting_network.__file__).read_bytes()
    processor = f"{platform.machine()}-{torch.backends.cpu.get_cpu_capability()}"
    return f"{processor}-torch{torch.__version__}-{hashlib.sha256(source).hexdigest()[:12]}"


@cache
def _load(path: Path) -> Kernel | None:
    try:
        compiled = torch._inductor.aoti_load_package(str(path))
    except Exception as error:  # whatever is wrong with it, the network works without a kernel
        log.warning("the kernel %s cannot be loaded (%s); going on without it", path, error)
        return None

    def kernel(rows: Sequence[Tensor]) -> Tensor:
        out = passes.empty(len(rows[0]), rows[0])
        for columns in passes.column_slices(len(out), PIECE):
            compiled(out[columns], *[row[columns] for row in rows])
        return out

    return kernel


class _Fused(nn.Module):
    """What is compiled: the network in plain minima and maxima."""

    def __init__(self, columns: Columns) -> None:
        super().__init__()
        self.columns = columns

    def forward(self, out: Tensor, *rows: Tensor) -> None:
        out.copy_(sorting_network.apply(self.columns, rows, lambda a, b, _: (torch.minimum(a, b), torch.maximum(a, b))))


def _compile(columns: Columns, n: int, path: Path) -> None:
    d = torch.export.Dim("d", min=2)
    example = tuple(torch.zeros(1 + n, PIECE))
    program = torch.export.export(_Fused(columns), example, dynamic_shapes=({0: d}, ({0: d},) * n))
    unfinished = path.with_name(f"{os.getpid()}-{path.name}")
    torch._inductor.aoti_compile_and_package(program, package_path=str(unfinished), inductor_configs=SETTINGS)
    unfinished.replace(path)  # whole, or not there


if __name__ == "__main__":
    os.nice(10)
    formula, trim, num_rows, target = sys.argv[1:]
    _compile(Columns(formula, int(trim)), int(num_rows), Path(target))
