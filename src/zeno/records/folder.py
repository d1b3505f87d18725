"""The run folder.

It holds `run.toml` (the settings; `zeno train run.toml` repeats the run if its task has a name), `records.jsonl` (one
JSON line per step, written at once, so that an interrupted run can be read, with a hash of it and the lines before),
`model.safetensors` and `checkpoints/`. Where something was measured after the record of a step was written, the record
is there once more, with what was measured. What is read may have been damaged, or written by anybody.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from zeno.records.files import LineFile, is_locked, locked, read_file, write_atomically
from zeno.records.hashes import START, check_hash, with_hash
from zeno.records.record import Record

RUN_FILE = "run.toml"
COMPARE_FILE = "compare.toml"  # in the folder of a comparison: its settings, and the folders of its runs in order
RECORDS_FILE = "records.jsonl"
MODEL_FILE = "model.safetensors"
CHECKPOINTS = "checkpoints"
SILENCE = 600.0  # seconds without a record after which a run is taken to be over, where folders cannot be locked


class Journal(ExitStack):
    """Writes the records of a run as they arrive; without a folder it only collects them.

    With `earlier` records it continues after them; records that follow them in the folder are discarded. With
    `keep=False` it does not hold records in memory.
    """

    def __init__(
        self, folder: Path | None, settings: str, earlier: Sequence[Record] | None = None, keep: bool = True
    ) -> None:
        super().__init__()
        self.records: list[Record] = list(earlier or []) if keep else []
        self._keep = keep
        self._file: LineFile | None = None
        self._hash = self._hash_before = START  # after and before the last record
        if folder is not None:
            if earlier is None and (folder / RECORDS_FILE).exists():
                raise ValueError(f"The folder {folder} holds a run already. Name another one, or resume it.")
            folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as opened:  # closed if one of these raises
                opened.enter_context(locked(folder))
                write_atomically(folder / RUN_FILE, settings)
                write_atomically(folder / RECORDS_FILE, b"".join(map(self._line, earlier or ())))
                self._file = opened.enter_context(closing(LineFile(folder / RECORDS_FILE)))
                self.push(opened.pop_all())

    def append(self, record: Record) -> None:
        """Writes a record; if that raises, nothing of the record is in the file."""
        if self._file is not None:
            line = self._line(record)
            try:
                self._file.append(line)
            except BaseException:
                self._hash = self._hash_before
                raise
        if self._keep:
            self.records.append(record)

    def remove_last(self) -> None:
        """Removes the record that was appended last."""
        if self._file is not None:
            self._file.remove_last()
            self._hash = self._hash_before
        if self._keep:
            self.records.pop()

    def _line(self, record: Record) -> bytes:
        """The next line, with its hash."""
        self._hash_before = self._hash
        line, self._hash = with_hash(record.to_json().encode(), self._hash)
        return line + b"\n"

    def sync(self) -> None:
        """Returns once the written records are on the disk."""
        if self._file is not None:
            self._file.sync()


def being_written(folder: Path) -> bool:
    """Whether a process is writing to this folder: holds its lock, or wrote a record lately if there are no locks."""
    found = is_locked(folder)
    if found is not None:
        return found
    records = folder / RECORDS_FILE
    return records.exists() and time.time() - records.stat().st_mtime < SILENCE


def read(folder: Path) -> list[Record]:
    """The records of a run folder, up to the first that is damaged or out of place; a warning says where that is."""
    lines, _ = lines_in(folder)
    records: list[Record] = []
    read = list(Reader().records(lines))
    for record in read:
        records[record.step :] = [record]
    if len(read) < len(lines):
        path, line = folder / RECORDS_FILE, len(read) + 1
        logging.getLogger("zeno").warning("%s is damaged at line %d: the rest is not used", path, line)
    return records


def lines_in(folder: Path) -> tuple[list[bytes], bytes]:
    """The complete lines of the records in a folder, and the part after the last newline, which is incomplete."""
    path = folder / RECORDS_FILE
    *lines, rest = read_file(path).split(b"\n") if path.exists() else [b""]
    return lines, rest


class Reader:
    """Reads the lines of a run in order, up to the first that is damaged or out of place."""

    def __init__(self) -> None:
        self._last: Record | None = None
        self._hash = START

    def records(self, lines: Iterable[bytes]) -> Iterator[Record]:
        """One for each line. A record of the same step as the one before takes its place: it has more measurements."""
        for line in lines:
            try:
                line_hash = check_hash(line, self._hash)
                record = Record.from_json(line.decode())
            except ValueError:
                return
            if not self._is_next(record):
                return
            self._last, self._hash = record, line_hash
            yield record

    def _is_next(self, record: Record) -> bool:
        if self._last is None:
            return record.step == 0
        return record.step == self._last.step + 1 or record.measures_again(self._last)
