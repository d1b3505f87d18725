"""`python -m fuzz --seconds 60`: tries hostile input, and prints the cases in which something got through."""

import contextlib
import ctypes
import gc
import resource
import time
import traceback
from collections import Counter

import numpy as np
import torch
import typer

from fuzz.targets import TARGETS

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
REPORTED = 10  # failures that are printed
MMAP_THRESHOLD = -3  # of glibc's mallopt


@app.command()
def fuzz(
    seconds: float = typer.Option(60.0, help="How long to try."),
    seed: int = typer.Option(0, help="Other seeds, other cases."),
    only: str | None = typer.Option(None, help=f"One of {', '.join(TARGETS)}."),
    case: int | None = typer.Option(None, help="Only the case of this number, as a failure names it."),
) -> None:
    """Try hostile input; exit with 1 if something got through."""
    torch.set_num_threads(1)
    return_what_is_freed()
    names = [only] if only else list(TARGETS)
    tried: Counter[str] = Counter()
    failed: list[str] = []
    peaks: list[int] = []  # of the memory in use, a tenth of the time apart
    start = time.monotonic()
    number = 0 if case is None else case
    while time.monotonic() - start < seconds and (case is None or not tried):
        for name in names:
            tried[name] += 1
            error = failure(name, seed, number)
            if error:
                failed.append(name)
                if len(failed) <= REPORTED:
                    print(f"\n{error}\nagain: python -m fuzz --seed {seed} --only {name} --case {number}", flush=True)
        number += 1
        if time.monotonic() - start > len(peaks) * seconds / 10:
            gc.collect()
            peaks.append(memory())
            print(f"{int(time.monotonic() - start)} s, {dict(tried)}, {len(failed)} failed, {peaks[-1]} MB", flush=True)
    print(f"{tried.total()} cases, {len(failed)} failed: {dict(Counter(failed))}. Memory by time in MB: {peaks}")
    raise typer.Exit(1 if failed else 0)


def failure(name: str, seed: int, number: int) -> str | None:
    """What went wrong in this case; None if nothing did."""
    rng = np.random.default_rng([seed, *name.encode(), number])
    try:
        TARGETS[name](rng)
    except Exception:
        return traceback.format_exc()
    return None


def return_what_is_freed() -> None:
    """Where this is glibc: without it, holes between large tensors of other sizes in each case look like a leak."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, 2**18)


def memory() -> int:
    """The most that this process has used so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    app()
