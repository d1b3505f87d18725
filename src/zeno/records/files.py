"""Atomic writes, files that grow by whole lines, and folder locks."""

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
    try:
        with _errors_named(path), temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # on a full disk it would only take space
        raise
    if sync and sys.platform != "win32":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name
        finally:
            os.close(folder)


class LineFile:
    """A file that grows by whole lines: a line that cannot be written leaves no part of itself behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)
        self._end = self._before = path.stat().st_size  # after and before the last line

    def append(self, line: bytes) -> None:
        rest = memoryview(line)
        try:
            with _errors_named(self.path):
                while rest:
                    rest = rest[self._file.write(rest) :]
        except BaseException:
            self._file.truncate(self._end)
            raise
        self._before, self._end = self._end, self._end + len(line)

    def remove_last(self) -> None:
        """Removes the line that was appended last."""
        self._file.truncate(self._before)
        self._end = self._before

    def sync(self) -> None:
        """Returns once the lines are on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


@contextmanager
def _errors_named(path: Path) -> Iterator[None]:
    """Adds the path to errors of the system that lack one, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


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
