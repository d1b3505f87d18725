"""Trains the runs of the figures that are missing, and keeps what came of each.

A folder holds `scale.toml`, `curves.jsonl` (one JSON line a finished run, flushed as it comes) and `runs/`, with a run
folder for each: a run that was stopped goes on from its newest checkpoint, and finished ones are never trained again.
"""

import fcntl
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from zeno.faults import FAULTS
from zeno.problem import tasks
from zeno.problem import threads as cores
from zeno.problem.registry import describe
from zeno.records.folder import RECORDS_FILE, RUN_FILE, Record, summarize
from zeno.studies.outcomes import Outcomes
from zeno.studies.processes import Died, in_processes
from zeno.studies.reproduction.figures import Figure
from zeno.studies.reproduction.scales import Scale, key
from zeno.training.execution import Setup
from zeno.training.interrupt import Stop, Stopped
from zeno.training.loop import train
from zeno.training.run import Run, key_of, name_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCALE_FILE = "scale.toml"
CURVES_FILE = "curves.jsonl"
LOCK_FILE = ".lock"
RUNS = "runs"
CHECKPOINT_EVERY = 25


@dataclass(frozen=True)
class Curve:
    """What came of one run: an entry for each evaluation."""

    steps: list[int]
    accuracy: list[float | None]
    train_loss: list[float | None]  # None where it was not finite
    faulty_kept: float | None
    faulty_among_kept: float | None
    skipped: int
    seconds: float | None  # of training, over all steps

    @classmethod
    def of(cls, records: Sequence[Record]) -> "Curve":
        seen, summary = [r for r in records if r.evaluated], summarize(records)
        return cls(
            steps=[r.step + 1 for r in seen],
            accuracy=[r.accuracy for r in seen],
            train_loss=[r.train_loss for r in seen],
            faulty_kept=summary.faulty_kept,
            faulty_among_kept=summary.faulty_among_kept,
            skipped=summary.skipped,
            seconds=None if summary.seconds_per_step is None else summary.seconds_per_step * len(records),
        )


class RunsFailed(RuntimeError):  # noqa: N818
    """Some runs ended with an error; the others are kept."""

    def __init__(self, failed: Sequence[str]) -> None:
        super().__init__(f"{len(failed)} runs failed, the others are kept: {'; '.join(failed)}.")


@dataclass(frozen=True)
class Job:
    """A run to train in a folder of its own."""

    run: Run
    folder: Path
    setup: Setup


def folder_of(run: Run) -> str:
    """A name that says what the run is, with a few digits that tell it from every other."""
    fault = f"{describe(run.fault, FAULTS)}-q{run.faulty}" if run.faulty else "no-faults"
    parts = f"{type(run.split).__name__}-{fault}-{name_of(run.rule)}-seed{run.seed}".lower()
    return f"{re.sub(r'[^a-z0-9_.]+', '-', parts)}-{hashlib.sha256(key(run).encode()).hexdigest()[:8]}"


def runs_of(figures: Sequence[Figure]) -> list[Run]:
    """Each run once, though several figures may share it; first repeats first."""
    found = {key(run): run for figure in figures for run in figure.runs}
    return sorted(found.values(), key=lambda run: run.seed)


def missing(figures: Sequence[Figure], curves: Mapping[str, Curve]) -> list[Run]:
    return [run for run in runs_of(figures) if key(run) not in curves]


def run(
    scale: Scale,
    figures: Sequence[Figure],
    folder: Path,
    device: str = "cpu",
    processes: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Curve]:
    """Trains what is missing, several runs at a time, and returns the curves of all finished runs by their keys.

    `on_progress` is told every second how many steps are done, and of how many. Ctrl-C and SIGTERM raise
    `KeyboardInterrupt`; what was done until then is in the folder.
    """
    if processes is not None and processes < 1:
        raise ValueError(f"A reproduction needs at least one process. Found processes={processes}.")
    setup = Setup(device=device, checkpoint_every=CHECKPOINT_EVERY, checkpoints=1)
    to_train = missing(figures, read(folder))
    if to_train:  # says what is wrong before anything is written
        task = tasks.load(scale.task, Path(scale.data) if scale.data else None)
        tasks.with_model(task, scale.model).model()
    jobs = {folder / RUNS / folder_of(one): one for one in to_train}
    total = sum(one.steps for one in runs_of(figures))
    trained = total - sum(one.steps for one in to_train)
    failed: list[str] = []
    last_look = 0.0

    with _held(scale, folder), Stop("stopping; what is done is kept") as stop:
        curves = read(folder)
        finished = _finished(folder)
        finished.mend()

        def look() -> bool:
            nonlocal last_look
            if on_progress is not None and time.monotonic() - last_look > 1:
                last_look = time.monotonic()
                on_progress(trained + sum(map(_steps_done, jobs)), total)
            return stop.asked is not None

        work = [Job(one, where, setup) for where, one in jobs.items()]
        for job, outcome in in_processes(measure, work, processes or _processes(device), look):
            del jobs[job.folder]
            if isinstance(outcome, Curve):
                trained += job.run.steps
                curves[key(job.run)] = outcome
                finished.append(replace(job.run, data=None).to_toml(), outcome)  # whoever reads it has other folders
            else:
                failed.append(f"{job.folder.name}: {outcome.how if isinstance(outcome, Died) else outcome}")
        if stop.asked is not None:
            raise Stopped(stop.asked)
    if on_progress is not None:
        on_progress(trained, total)
    if failed:
        raise RunsFailed(failed)
    return curves


def measure(job: Job) -> Curve | str:
    """Trains one run to its end; an error is told in words, for the other process.

    The folder's name is that of the settings, so what cannot be gone on with there is damaged, and starts over.
    """
    there = (job.folder / RUN_FILE).is_file()
    try:
        try:
            return Curve.of(train(job.run, job.folder, setup=job.setup, resume=there))
        except ValueError:
            if not there:
                raise
            shutil.rmtree(job.folder)
            return Curve.of(train(job.run, job.folder, setup=job.setup))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def read(folder: Path) -> dict[str, Curve]:
    """The curves of the finished runs by their keys; a line that was cut off is left out."""
    return _finished(folder).read()


def _finished(folder: Path) -> Outcomes[Curve]:
    return Outcomes(folder / CURVES_FILE, Curve, key_of)


@contextmanager
def _held(scale: Scale, folder: Path) -> Iterator[None]:
    """Makes the folder that of this scale, and keeps others from training there at the same time."""
    path = folder / SCALE_FILE
    if path.exists() and scale_of(folder) != replace(scale, data=None):
        raise ValueError(f"The folder {folder} holds another scale, in {SCALE_FILE}. Name another one with --out.")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"Another reproduction trains in {folder}. Wait for it, or name another folder.") from None
        if not path.exists():
            new = path.with_name(f".{SCALE_FILE}.new")
            new.write_text(scale.to_toml(), encoding="utf-8")
            os.replace(new, path)
        yield


def scale_of(folder: Path) -> Scale:
    """The scale that a folder holds."""
    text = (folder / SCALE_FILE).read_text(encoding="utf-8")
    try:
        return Scale(**tomllib.loads(text))
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise ValueError(f"{folder / SCALE_FILE} is not that of a scale: {error}. Remove it to start over.") from None


def _steps_done(folder: Path) -> int:
    path = folder / RECORDS_FILE
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _processes(device: str) -> int:
    """One for each core; but one GPU has no use for several."""
    return cores.number() if device == "cpu" else 1
