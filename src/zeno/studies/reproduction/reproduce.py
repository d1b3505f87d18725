"""Trains the runs of the figures, and keeps a curve for each.

A folder holds `scale.toml`, `curves.jsonl` (one JSON line per finished run) and `runs/`, with a run folder for each: an
interrupted run continues from its newest checkpoint, and finished ones are not trained again.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from zeno.faults import FAULTS
from zeno.problem.registry import describe
from zeno.rules import PARTS
from zeno.studies.reproduction.figures import Figure
from zeno.studies.reproduction.scales import SCALE_FILE, Scale, scale_of
from zeno.studies.sweep import Job, OnRecord, OutcomeFile, Results, ignore, key, sweep
from zeno.training.execution import ExecutionSettings
from zeno.training.run import Run

CURVES_FILE = "curves.jsonl"
RUNS = "runs"
CHECKPOINT_EVERY = 25


def folder_of(run: Run) -> str:
    """A readable folder name, made unique by a hash of the settings."""
    fault = f"{describe(run.fault, FAULTS)}-q{run.faulty}" if run.faulty else "no-faults"
    parts = f"{type(run.split).__name__}-{fault}-{describe(run.rule, PARTS)}-seed{run.seed}".lower()
    return f"{re.sub(r'[^a-z0-9_.]+', '-', parts)}-{hashlib.sha256(key(run).encode()).hexdigest()[:8]}"


def jobs_of(figures: Sequence[Figure], folder: Path, device: str = "cpu") -> list[Job]:
    """One job for each run, even if several figures share it; first repeats first."""
    setup = ExecutionSettings(device=device, checkpoint_every=CHECKPOINT_EVERY, checkpoints=1)
    runs = sorted({key(run): run for figure in figures for run in figure.runs}.values(), key=lambda run: run.seed)
    return [Job(name, run, folder / RUNS / name, setup) for run in runs for name in [folder_of(run)]]


def run(
    scale: Scale,
    figures: Sequence[Figure],
    folder: Path,
    device: str = "cpu",
    processes: int | None = None,
    on_record: OnRecord = ignore,
) -> Results:
    """Trains the runs that are missing in the folder or failed; see `sweep`. On a GPU, one at a time by default."""
    if (folder / SCALE_FILE).exists() and scale_of(folder) != replace(scale, data=None):
        raise ValueError(
            f"The folder {folder} holds another scale or paper, in {SCALE_FILE}. Name another one with --out."
        )
    if processes is None and device != "cpu":
        processes = 1
    jobs = jobs_of(figures, folder, device)
    return sweep(jobs, outcomes_in(folder), (SCALE_FILE, scale.to_toml()), processes, on_record)


def outcomes_in(folder: Path) -> OutcomeFile:
    return OutcomeFile(folder / CURVES_FILE)
