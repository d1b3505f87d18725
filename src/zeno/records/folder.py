"""The run folder.

It holds `run.toml` (the settings; `zeno train run.toml` repeats the run if its task has a name), `records.jsonl` (one
JSON line per step, written at once, so that an interrupted run can be read), `model.safetensors` and
`checkpoints/`.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from zeno.records.files import LineFile, is_locked, locked, write_atomically
from zeno.records.record import Record

RUN_FILE = "run.toml"
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
        if folder is not None:
            if earlier is None and (folder / RECORDS_FILE).exists():
                raise ValueError(f"The folder {folder} holds a run already. Name another one, or resume it.")
            folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as opened:  # closed if one of these raises
                opened.enter_context(locked(folder))
                write_atomically(folder / RUN_FILE, settings)
                write_atomically(folder / RECORDS_FILE, "".join(record.to_json() + "\n" for record in earlier or ()))
                self._file = opened.enter_context(closing(LineFile(folder / RECORDS_FILE)))
                self.push(opened.pop_all())

    def append(self, record: Record) -> None:
        """Writes a record; if that raises, nothing of the record is in the file."""
        if self._file is not None:
            self._file.append(record.to_json().encode() + b"\n")
        if self._keep:
            self.records.append(record)

    def remove_last(self) -> None:
        """Removes the record that was appended last."""
        if self._file is not None:
            self._file.remove_last()
        if self._keep:
            self.records.pop()

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
    """The records of a run folder, up to the first that is damaged or out of place."""
    return list(parse(lines_in(folder)))


def lines_in(folder: Path) -> list[bytes]:
    """The complete lines of the records in a folder."""
    path = folder / RECORDS_FILE
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []  # the part after the last newline is incomplete


def parse(lines: Iterable[bytes], first_step: int = 0) -> Iterator[Record]:
    """The records in these lines, up to the first that is damaged or out of place."""
    for step, line in enumerate(lines, first_step):
        try:
            record = Record.from_json(line.decode())
        except (ValueError, TypeError, AttributeError):
            return
        if record.step != step:
            return
        yield record
