"""Train many runs, and continue where an earlier attempt stopped.

A study plans jobs. `sweep` trains those that have no outcome yet, several at a time in processes, and appends one JSON
line per run to a file in its folder. Runs that failed are trained again the next time.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from zeno.problem.threads import num_cores
from zeno.records.files import LineFile, locked, read_file, write_atomically
from zeno.records.folder import RUN_FILE
from zeno.records.record import Record, summarize
from zeno.records.row import Row
from zeno.records.typed import typed
from zeno.studies.processes import Failed, in_processes
from zeno.training.build import make_task
from zeno.training.execution import ExecutionSettings
from zeno.training.interrupt import Interrupt
from zeno.training.loop import train
from zeno.training.run import Run
from zeno.training.settings import key_of

Result = TypeVar("Result")
OnRecord = Callable[["Job", Record], None]  # called after every step of every job


@dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    name: str  # unique in its sweep
    run: Run
    folder: Path | None = None  # run folder to write, and to resume from; None: only the outcome is kept
    execution: ExecutionSettings = ExecutionSettings()

    @cached_property
    def key(self) -> str:
        return key(self.run)


def key(run: Run) -> str:
    """Identifies a run: everything that decides its result. The folder of its data does not."""
    return key_of(run.to_toml())


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run, with one value per evaluation."""

    steps: list[int]
    accuracy: list[float | None]  # on the test set
    train_loss: list[float | None]  # None where it was not finite
    faulty_kept: float | None
    faulty_among_kept: float | None
    skipped: int  # steps
    seconds: float | None  # of training, over all steps
    elapsed: list[float] | None = None  # seconds of training up to each evaluation; None in older files

    @classmethod
    def of(cls, records: Sequence[Record]) -> "Outcome":
        seen, summary = [r for r in records if r.evaluated], summarize(records)
        return cls(
            steps=[r.step + 1 for r in seen],
            accuracy=[r.accuracy for r in seen],
            train_loss=[r.train_loss for r in seen],
            faulty_kept=summary.faulty_kept,
            faulty_among_kept=summary.faulty_among_kept,
            skipped=summary.skipped,
            seconds=None if summary.seconds_per_step is None else summary.seconds_per_step * len(records),
            elapsed=[sum(sum(r.seconds.values()) for r in records[: last.step + 1]) for last in seen],
        )


Results = Mapping[str, Outcome | Failed]  # by the keys of the runs


class OutcomeFile:
    """One JSON line per run: its settings, and its outcome or why it failed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Outcome | Failed]:
        """The outcomes by the keys of their runs, without truncated or damaged lines."""
        return {key_of(settings): outcome for settings, outcome in self._lines()}

    def mend(self) -> None:
        """Removes truncated and damaged lines."""
        write_atomically(self.path, "".join(_line(*line) for line in self._lines()))

    def append(self, run: Run, outcome: Outcome | Failed) -> None:
        with closing(LineFile(self.path)) as file:
            settings = replace(run, data=None).to_toml()  # the data may be elsewhere for the reader
            file.append(_line(settings, outcome).encode())

    def _lines(self) -> Iterator[tuple[str, Outcome | Failed]]:
        for line in read_file(self.path).split(b"\n")[:-1] if self.path.exists() else ():
            with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
                values = json.loads(line)
                settings, error = str(values.pop("run")), values.pop("error", None)
                if values.pop("diverged", None) is not None:  # a cell of an earlier version: only its end
                    values |= {name: [values[name]] for name in ("accuracy", "train_loss")}
                    values |= {"steps": [], "faulty_among_kept": None}
                yield settings, typed(Outcome, values) if error is None else Failed(str(error))


def _line(settings: str, outcome: Outcome | Failed) -> str:
    return json.dumps({"run": settings, **asdict(outcome)}, allow_nan=False) + "\n"


def finished(results: Results) -> dict[str, Outcome]:
    """The outcomes of the runs that did not fail."""
    return {key: outcome for key, outcome in results.items() if isinstance(outcome, Outcome)}


def missing(jobs: Iterable[Job], results: Results) -> list[Job]:
    """The jobs without an outcome, and those that failed; of jobs with equal runs, the first."""
    by_key: dict[str, Job] = {}
    for job in jobs:
        by_key.setdefault(job.key, job)
    return [job for key, job in by_key.items() if not isinstance(results.get(key), Outcome)]


def train_job(
    job: Job, on_record: Callable[[Record], None], on_suspect: Callable[[Row], object] | None = None
) -> list[Record]:
    """Trains a job, from the newest checkpoint if its folder holds a run."""
    there = job.folder is not None and (job.folder / RUN_FILE).is_file()
    return train(job.run, job.folder, on_record, job.execution, there, on_suspect)


def measure(job: Job, on_record: Callable[[Record], None]) -> Outcome:
    """Trains a job. Its folder is named after its run, so the job starts over if the folder is damaged."""
    folder = job.folder if job.folder and job.folder.is_dir() else None
    try:
        return Outcome.of(train_job(job, on_record))
    except ValueError:
        if folder is None:
            raise
        shutil.rmtree(folder)
        return Outcome.of(train_job(job, on_record))


def ignore(job: Job, record: Record) -> None:
    """An `OnRecord` that does nothing."""


def run_jobs(
    jobs: Iterable[Job],
    do: Callable[[Job, Callable[[Record], None]], Result],
    processes: int = 0,
    on_record: OnRecord = ignore,
) -> Iterator[tuple[Job, Result | Failed]]:
    """Yields each job with the result of `do(job, on_record)`, in the order in which they finish.

    With `processes=0` jobs run one after the other in this process, and errors are raised. In processes, a job that
    raises or whose process dies yields `Failed`. Ctrl-C and SIGTERM raise a `KeyboardInterrupt`.
    """
    with Interrupt("stopping; finished runs are kept") as stop:
        if processes:
            yield from in_processes(do, jobs, processes, on_record, stop.check)
        else:
            for job in jobs:
                stop.check()
                yield job, do(job, partial(on_record, job))
        stop.check()


def sweep(
    jobs: Iterable[Job],
    file: OutcomeFile,
    settings: tuple[str, str],
    processes: int | None = None,
    on_record: OnRecord = ignore,
) -> Results:
    """Trains the jobs that have no outcome in the file, and returns all outcomes by the keys of their runs.

    `settings` is a file for the folder: its name and its text. Nothing is written if the task, the data or the model
    is wrong. By default there is one process per core. Ctrl-C and SIGTERM raise `KeyboardInterrupt`; the outcomes up
    to then are in the file.
    """
    if processes is not None and processes < 1:
        raise ValueError(f"A sweep needs at least one process. Found processes={processes}.")
    to_train = missing(jobs, file.read())
    for job in to_train[:1]:
        make_task(job.run).model()
    folder, (name, text) = file.path.parent, settings
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        write_atomically(folder / name, text)
        file.mend()
        for job, outcome in run_jobs(to_train, measure, processes or num_cores(), on_record):
            file.append(job.run, outcome)
    return file.read()
