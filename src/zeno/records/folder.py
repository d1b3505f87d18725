"""What is written down of every step, and read again by everything that looks at a run.

A run folder holds `run.toml` (the settings; where the task has a name, `zeno train run.toml` repeats the run),
`records.jsonl` (one JSON line a step, flushed as it is written, so that a run that was stopped can be read),
`model.safetensors` and `checkpoints/`.
"""

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import IO

if sys.platform != "win32":
    import fcntl

RUN_FILE = "run.toml"
RECORDS_FILE = "records.jsonl"
MODEL_FILE = "model.safetensors"
CHECKPOINTS = "checkpoints"
SILENCE = 600.0  # seconds without a record after which a run is over, where folders cannot be locked


@dataclass(frozen=True)
class Record:
    """One step. Equal records come from equal steps: how long they took does not count."""

    step: int
    lr: float
    kept: list[bool] | None  # for each worker; None when the step was skipped
    scores: list[float | None] | None  # for each worker, None for the unusable; None when the rule does not rank
    standing: list[float] | None = None  # for each worker, by many steps; None when the rule remembers none
    samples: int | None = None  # of the server's own that candidates were scored on, where the rule chose it
    unjudged: list[int] = field(default_factory=list)  # workers whose candidate came, and the rule did not look at it
    quarantined: list[int] = field(default_factory=list)  # workers that were not asked
    errors: dict[int, str] = field(default_factory=dict)  # worker -> kind, and what was wrong with its reply
    late: list[int] = field(default_factory=list)  # workers whose reply to an earlier step came now, and was dropped
    skipped: str | None = None  # why the step made no update
    faulty: list[int] | None = None  # who was made faulty, in a simulation; None when nobody knows
    train_loss: float | None = None  # after this step, where it was evaluated; None when not finite
    accuracy: float | None = None  # on the test set, after this step, where it was evaluated
    evaluated: bool = False
    seconds: dict[str, float] = field(default_factory=dict, compare=False)  # by phase
    workers: dict[str, int] = field(default_factory=dict, compare=False)  # how many are alive, late, lost

    @property
    def dropped(self) -> list[int]:
        """Workers that were judged and not kept, those without a usable reply too; nobody where nobody was kept."""
        if self.kept is None or not any(self.kept):
            return []
        not_judged = {*self.unjudged, *self.quarantined}
        return [worker for worker, kept in enumerate(self.kept) if not kept and worker not in not_judged]

    def to_json(self) -> str:
        return json.dumps(asdict(self), allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> "Record":
        values = json.loads(line)
        known = {f.name for f in fields(cls)}
        values = {name: value for name, value in values.items() if name in known}
        values["errors"] = {int(worker): reason for worker, reason in values.get("errors", {}).items()}
        return cls(**values)


def finite(values: Iterable[float]) -> list[float | None]:
    """JSON has no NaN and no infinity: None stands for them."""
    return [value if math.isfinite(value) else None for value in values]


class Journal:
    """Writes the records of a run as they come; without a folder it only collects them.

    With `earlier` records it goes on after them, in a folder that holds at least these; what follows them there is
    dropped. Without `keep` it holds no records itself.
    """

    def __init__(
        self, folder: Path | None, settings: str, earlier: Sequence[Record] | None = None, keep: bool = True
    ) -> None:
        self.records: list[Record] = list(earlier or []) if keep else []
        self._keep = keep
        self._file: IO[str] | None = None
        self._lock = ExitStack()
        if folder is not None:
            if earlier is None and (folder / RECORDS_FILE).exists():
                raise ValueError(f"The folder {folder} holds a run already. Name another one, or resume it.")
            folder.mkdir(parents=True, exist_ok=True)
            self._lock.enter_context(writing(folder))
            _replace(folder / RUN_FILE, settings)
            _replace(folder / RECORDS_FILE, "".join(record.to_json() + "\n" for record in earlier or ()))
            self._file = (folder / RECORDS_FILE).open("a", encoding="utf-8")

    def append(self, record: Record) -> None:
        if self._keep:
            self.records.append(record)
        if self._file is not None:
            self._file.write(record.to_json() + "\n")
            self._file.flush()

    def sync(self) -> None:
        """What was written is on the disk, also if the machine goes down now."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
        self._lock.close()


def _locked(folder: Path) -> int | None:
    """A lock on a folder, which ends with this process at the latest; None where folders cannot be locked."""
    if sys.platform == "win32":
        return None
    handle = os.open(folder, os.O_RDONLY)
    until = time.monotonic() + 1.0
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if time.monotonic() > until:  # one who only looks whether there is a lock has one for a moment
                os.close(handle)
                raise ValueError(
                    f"Another process is writing to the run in {folder}. Wait for it, stop it, or name another folder."
                ) from None
            time.sleep(0.02)
        except OSError:  # as on some network drives
            os.close(handle)
            return None


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Others see that this folder is being written."""
    lock = _locked(folder)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def being_written(folder: Path) -> bool:
    """Whether a run, or a comparison, goes on in this folder."""
    if sys.platform != "win32":
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        except OSError:
            pass
        finally:
            os.close(handle)
    records = folder / RECORDS_FILE
    return records.exists() and time.time() - records.stat().st_mtime < SILENCE


def _replace(path: Path, text: str) -> None:
    """Writes a file that is the old or the new one at any moment."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def read(folder: Path) -> list[Record]:
    """The records of a run folder; a last line that was cut off in the middle is left out."""
    lines = (folder / RECORDS_FILE).read_text(encoding="utf-8").split("\n")
    return [Record.from_json(line) for line in lines[:-1]]  # what follows the last newline is empty or cut off


def read_whole(folder: Path) -> list[Record]:
    """The records up to the first one that is damaged or out of its place: what a run can go on from."""
    found: list[Record] = []
    if (folder / RECORDS_FILE).exists():
        for line in (folder / RECORDS_FILE).read_bytes().split(b"\n")[:-1]:
            try:
                record = Record.from_json(line.decode())
            except (ValueError, TypeError, AttributeError):
                break
            if record.step != len(found):
                break
            found.append(record)
    return found


@dataclass(frozen=True)
class Summary:
    """A run in a few numbers; None where it has none."""

    steps: int
    skipped: int
    late: int  # replies that came after their step was over
    evaluations: int
    accuracy: float | None  # the last that was evaluated
    train_loss: float | None
    faulty_kept: float | None  # share of the faulty candidates that the rule kept
    faulty_among_kept: float | None  # share of the candidates that the rule kept that were faulty
    seconds_per_step: float | None


def summarize(records: Sequence[Record]) -> Summary:
    """The records of a run in a few numbers."""
    last = next((r for r in reversed(records) if r.evaluated), None)
    num_faulty = num_kept = num_both = 0
    for record in records:
        if record.kept is not None and record.faulty is not None:
            num_faulty += len(record.faulty)
            num_kept += sum(record.kept)
            num_both += sum(record.kept[worker] for worker in record.faulty)
    return Summary(
        steps=len(records),
        skipped=sum(r.skipped is not None for r in records),
        late=sum(len(r.late) for r in records),
        evaluations=sum(r.evaluated for r in records),
        accuracy=last.accuracy if last else None,
        train_loss=last.train_loss if last else None,
        faulty_kept=num_both / num_faulty if num_faulty else None,
        faulty_among_kept=num_both / num_kept if num_faulty and num_kept else None,
        seconds_per_step=sum(sum(r.seconds.values()) for r in records) / len(records) if records else None,
    )
