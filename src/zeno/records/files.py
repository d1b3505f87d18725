"""Atomic writes, files that grow by whole lines, and folder locks."""

import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

if sys.platform != "win32":
    import fcntl

NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has neither
NONBLOCK = getattr(os, "O_NONBLOCK", 0)
PATIENCE = 1.0  # seconds to wait for a lock: `is_locked` of another process holds it for a moment


def write_atomically(path: Path, content: str | bytes, sync: bool = False) -> None:
    """Writes a file that is the old or the new one at any moment, never a part of either.

    With `sync` the file is on the disk when the function returns, and survives a power failure.
    """
    temporary = path.with_name(f".{path.name}.new")
    _remove(temporary)  # a killed process may have left it
    try:
        with _errors_named(path), open(temporary, "xb", opener=_no_link) as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        _remove(temporary)  # on a full disk it would only take space
        raise
    if sync and sys.platform != "win32":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name
        finally:
            os.close(folder)


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def read_file(path: Path) -> bytes:
    """The content of a regular file; raises ValueError for a pipe or a device, which might never end."""
    with open_file(path) as file:
        return file.read()


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """The same, to read from."""
    with open(path, "rb", opener=_no_wait) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} is not a regular file. Remove it, or name another folder.")
        yield file


def _no_wait(path: str, flags: int) -> int:
    """Opens a pipe without waiting for a writer."""
    return os.open(path, flags | NONBLOCK)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | NO_FOLLOW, 0o666)


class LineFile:
    """A file that grows by whole lines: a line that cannot be written leaves no part of itself behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = FileIO(path, "ab", opener=_no_link)
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
