"""Progress bars of the commands that train, and how these commands end when they are interrupted."""

import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from zeno.cli.console import err
from zeno.records.record import Record
from zeno.report.tables import short_names
from zeno.studies.processes import Failed
from zeno.studies.sweep import Job, Results, missing
from zeno.training.interrupt import Interrupted

NO_OUTCOMES: Results = {}
BAR_WIDTH = 10


def command_to_resume(folder: Path, command: str = "train") -> str:
    return f"zeno {command} --resume {folder}"


class Pace:
    """Updates per second of an asynchronous run, and its recent arrivals: how many were accepted, and how stale."""

    RECENT = 100  # updates

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._recent: deque[tuple[float, int, int, int]] = deque(maxlen=self.RECENT + 1)

    def add(self, record: Record) -> str:
        """Adds an update; returns the text to show."""
        ages = record.staleness.values()
        self._recent.append((self._clock(), sum(record.kept or ()), len(ages), sum(ages)))
        began, (now, *_) = self._recent[0][0], self._recent[-1]
        rate = (len(self._recent) - 1) / (now - began) if now > began else 0.0
        kept, arrivals, age = (sum(column) for column in list(zip(*self._recent, strict=True))[1:])
        share, mean = (kept / arrivals, age / arrivals) if arrivals else (0.0, 0.0)
        return f"{rate:.1f} updates/s, {share:.0%} accepted, staleness {mean:.1f}"


class TrainingProgress:
    """Progress bars in steps, with the time left: one bar for each name, over all of its jobs.

    Catches a `KeyboardInterrupt`, so that the command can show the results so far; `finish` then ends the command.
    Jobs with an outcome need no training. `resume` is the command that continues; by default, that of the run trained
    last.
    """

    def __init__(self, bars: Mapping[str, Sequence[Job]], outcomes: Results = NO_OUTCOMES, resume: str = "") -> None:
        self.resume = resume
        self._interrupt: KeyboardInterrupt | None = None
        self._latest: Job | None = None
        self._steps: dict[str, int] = {}  # done, by the name of the job
        self._paces: dict[str, Pace] = {}  # of asynchronous runs, by the name of the job
        self._jobs = [job for jobs in bars.values() for job in jobs]
        self._progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
            BarColumn(BAR_WIDTH, table_column=Column(no_wrap=True)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("steps {task.fields[workers]} {task.fields[accuracy]}"),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            console=err,
            speed_estimate_period=600,  # slow and fast rules take turns
        )
        self._bars = {}
        for name, jobs in zip(short_names(list(bars)), bars.values(), strict=True):
            total = sum(job.run.steps for job in jobs)
            done = total - sum(job.run.steps for job in missing(jobs, outcomes))
            bar = self._progress.add_task(name, total=total, completed=done, start=False, workers="", accuracy="")
            self._bars.update({job.name: (bar, len(jobs) == 1) for job in jobs})

    def on_record(self, job: Job, record: Record) -> None:
        """Shows a step of this job."""
        bar, of_one_job = self._bars[job.name]
        self._progress.start_task(bar)
        self._progress.update(bar, advance=record.step + 1 - self._steps.get(job.name, 0))
        if of_one_job:
            shown = []
            if record.arrivals is not None:
                shown.append(self._paces.setdefault(job.name, Pace()).add(record))
            if job.execution.cluster != "local":
                shown += [f"{n} {kind}" for kind, n in record.workers.items() if n or kind == "alive"]
            if shown:
                self._progress.update(bar, workers=", ".join(shown))
            if record.accuracy is not None:
                self._progress.update(bar, accuracy=f"accuracy {record.accuracy:.1%}")
        self._steps[job.name] = record.step + 1
        self._latest = job

    def __enter__(self) -> "TrainingProgress":
        self._progress.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None:
            for task in self._progress.tasks:
                self._progress.update(task.id, completed=task.total)
        self._progress.stop()
        if isinstance(error, KeyboardInterrupt):
            self._interrupt = error
        elif error is not None and self._latest is not None and self._command_to_resume():
            print(f"stopped by an error; once it is solved: {self._command_to_resume()}", file=sys.stderr)
        return self._interrupt is not None

    def _command_to_resume(self) -> str:
        job = self._latest
        if not self.resume and job and job.folder and self._steps[job.name] < job.run.steps:
            return command_to_resume(job.folder)
        return self.resume

    def finish(self, outcomes: Results = NO_OUTCOMES, kept: str | None = None) -> None:
        """Ends the command with an exit code and the way to continue, if it was interrupted or runs failed."""
        found = [outcomes.get(job.key) for job in self._jobs]
        errors = [outcome.error for outcome in found if isinstance(outcome, Failed)]
        if errors:
            print(f"{len(errors)} of {len(found)} runs failed, the first with {errors[0]}", file=sys.stderr)
        if self._interrupt is not None:
            done = sum(outcome is not None for outcome in found) - len(errors)
            kept = kept or f"{done} of {len(found)} runs are kept"
            command = self._command_to_resume()
            print(f"interrupted: {kept}{f'; to continue: {command}' if command else ''}", file=sys.stderr)
            number = self._interrupt.signal_number if isinstance(self._interrupt, Interrupted) else signal.SIGINT
            raise typer.Exit(128 + number)
        if errors:
            print(f"to continue: {self._command_to_resume()}", file=sys.stderr)
            raise typer.Exit(1)
