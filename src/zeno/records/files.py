"""Atomic writes and folder locks."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":
    import fcntl

PATIENCE = 1.0  # seconds to wait for a lock: `is_locked` of another process holds it for a moment


def write_atomically(path: Path, content: str | bytes, sync: bool = False) -> None:
    """Writes a file that is the old or the new one at any moment, never a part of either.

    With `sync` the file is on the disk when the function returns, and survives a power failure.
    """
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    os.replace(temporary, path)
    if sync and sys.platform != "win32":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name
        finally:
            os.close(folder)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds an exclusive lock on a folder; without effect where folders cannot be locked."""
    end = time.monotonic() + PATIENCE
    while True:
        with _try_lock(folder, exclusive=True) as is_busy:
            if not is_busy:
                yield
                return
        if time.monotonic() > end:
            remedy = "Wait for it, stop it, or choose another folder."
            raise ValueError(f"Another process is writing to {folder}. {remedy}")
        time.sleep(0.02)


def is_locked(folder: Path) -> bool | None:
    """Whether a process holds the lock on a folder; None where folders cannot be locked."""
    with _try_lock(folder, exclusive=False) as is_busy:
        return is_busy


@contextmanager
def _try_lock(folder: Path, exclusive: bool) -> Iterator[bool | None]:
    """Locks a folder unless it is busy: yields True if another process holds it, None if there are no locks."""
    if sys.platform == "win32":
        yield None
        return
    is_busy: bool | None = False
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:
        is_busy = True if isinstance(error, BlockingIOError) else None  # None: as on some network drives
    try:
        yield is_busy
    finally:
        os.close(handle)  # releases the lock
