"""Every rule against every fault, for several numbers of faulty workers: which rule survives which fault.

A cell of the matrix is one run: a rule, a fault, a number of faulty workers and a seed. A matrix folder holds
`matrix.toml` (the settings) and `cells.jsonl` (one JSON line per finished run), so an interrupted matrix continues with
the cells that are missing.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from zeno.faults import FAULTS, Crash, Fault
from zeno.problem.registry import describe
from zeno.problem.threads import one_thread
from zeno.records import toml
from zeno.report.matrix import Entry, Grid
from zeno.rules import PARTS, RULES, Mean, Rule
from zeno.studies.compare import most_tolerant
from zeno.studies.processes import Failed
from zeno.studies.sweep import Job, OnRecord, Outcome, OutcomeFile, Results, ignore, missing, sweep
from zeno.training.dry_run import dry_run
from zeno.training.run import Run
from zeno.training.settings import from_settings, make_fault, make_rule, pop_rule_settings

MATRIX_FILE = "matrix.toml"
CELLS_FILE = "cells.jsonl"
ALL = "all"
GOOD_ALONE = "good workers alone"  # their mean; the faulty ones crash, the good ones draw the same batches as elsewhere
SERVER_ALONE = "server alone"  # its own gradient on as many samples as rules may use; all workers crash
DEFAULTS: Mapping[str, Any] = {
    "rule": (
        "mean",
        "median",
        "trimmed_mean",
        "krum",
        "geometric_median",
        "centered_clipping",
        "bulyan",
        "nnm+trimmed_mean",
        "fltrust",
        "zeno",
        "zeno_auto",
    ),
    "fault": (ALL,),
    "faulty": (8, 12, 16, 19),
    "seeds": 1,
    "steps": 200,
    "zeno_batch_size": 64,
}


class Place(NamedTuple):
    """Where a cell is in the matrix."""

    rule: str  # the row: the text that was given; the run has the parameters in use
    fault: str | None  # the column; None: all of them
    faulty: int  # the table


@dataclass(frozen=True)
class Matrix:
    """What to train; `plan` makes one from plain settings."""

    settings: Mapping[str, Any]  # that it was made from
    rules: tuple[str, ...]
    faults: tuple[str, ...]
    faulty: tuple[int, ...]
    seeds: int
    base: Run  # shared by all cells
    cells: Mapping[Place, list[Job]]  # one per seed

    def to_toml(self) -> str:
        """The settings as a TOML file that `zeno matrix` reads back."""
        own = {"rule": self.rules, "fault": self.faults, "faulty": self.faulty, "seeds": self.seeds}
        return toml.dumps({**self.settings, **own})

    def jobs(self) -> list[Job]:
        """The distinct runs of the cells, shuffled, so that the first ones predict how long all will take."""
        jobs = missing(chain(*self.cells.values()), {})
        random.Random(0).shuffle(jobs)
        return jobs


@one_thread()  # rules are tried on a few numbers, where more threads cost time
def plan(settings: Mapping[str, Any]) -> Matrix:
    """The matrix of these settings: as for `from_settings`, but `rule`, `fault` and `faulty` may be lists; and `seeds`.

    Unless `trim` is given, each rule is set to tolerate the faulty workers there are, or the most it can. Parameters
    written in the text of a rule take precedence. Rules and faults that are equal are taken once.
    """
    settings = {**DEFAULTS, **settings}
    shared = dict(settings)
    rules = _texts("rule", shared.pop("rule"), RULES)
    faults = {describe(f, FAULTS): f for f in map(make_fault, _texts("fault", shared.pop("fault"), FAULTS))}
    faulty, seeds = _list(shared.pop("faulty")), shared.pop("seeds")
    rule_settings = pop_rule_settings(shared)
    shared.setdefault("eval_every", shared["steps"])
    base = from_settings({**shared, "rule": "mean"})
    dry_run(base)
    for q in faulty:
        if type(q) is not int or not 1 <= q <= base.workers:
            most = base.workers
            raise ValueError(f"A matrix needs faulty from 1 to workers = {most}. Found faulty={q!r}. Set --faulty.")
    if type(seeds) is not int or seeds < 1:
        raise ValueError(f"A matrix needs seeds as a whole number of at least 1. Found seeds={seeds!r}.")
    if not (rules and faults and faulty):
        raise ValueError("A matrix needs at least one rule, one fault and one number of faulty workers. Found none.")

    by_text: dict[str, list[Rule]] = {}  # for each number of faulty workers
    for text in rules:
        each = [most_tolerant(text, {"trim": min(q, base.workers - 1), **rule_settings}, base.workers) for q in faulty]
        if each not in by_text.values():
            by_text[text] = each

    def jobs(faulty: int, name: str, rule: Rule, fault: Fault) -> list[Job]:
        run = replace(base, faulty=faulty, rule=rule, fault=fault)
        names = {n: f"{name}, {faulty} faulty, seed {n}" for n in range(base.seed, base.seed + seeds)}
        return [Job(name, replace(run, seed=n)) for n, name in names.items()]

    server = make_rule("server_alone", {k: v for k, v in rule_settings.items() if k == "zeno_batch_size"})
    cells: dict[Place, list[Job]] = {}
    for k, q in enumerate(faulty):
        parts = {Place(text, f, q): (each[k], faults[f]) for text, each in by_text.items() for f in faults}
        cells[Place(GOOD_ALONE, None, q)] = jobs(q, GOOD_ALONE, Mean(least=1), Crash())
        cells[Place(SERVER_ALONE, None, q)] = jobs(base.workers, SERVER_ALONE, server, Crash())
        cells |= {place: jobs(q, f"{place.rule}, {place.fault}", *part) for place, part in parts.items()}
    return Matrix(settings, tuple(by_text), tuple(faults), tuple(faulty), seeds, base, cells)


def _texts(name: str, value: object, known: Mapping[str, object]) -> list[str]:
    """The names that were given, each once; `all` stands for all known ones."""
    texts = _list(value)
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"A matrix needs each {name} as text. Found {text!r}.")
    return list(dict.fromkeys(one for text in texts for one in (known if text == ALL else [text.strip()])))


def _list(value: object) -> list[Any]:
    return list(dict.fromkeys(value)) if isinstance(value, list | tuple) else [value]


def run(matrix: Matrix, folder: Path, processes: int | None = None, on_record: OnRecord = ignore) -> Results:
    """Trains the cells that are missing in the folder or failed; see `sweep`."""
    return sweep(matrix.jobs(), outcomes_in(folder), (MATRIX_FILE, matrix.to_toml()), processes, on_record)


def outcomes_in(folder: Path) -> OutcomeFile:
    return OutcomeFile(folder / CELLS_FILE)


def grids(matrix: Matrix, results: Results) -> list[Grid]:
    """The results so far, one grid for each number of faulty workers."""
    entries = {place: _entry(place, jobs, results) for place, jobs in matrix.cells.items()}
    run, found = matrix.base, []
    for q in matrix.faulty:
        controls = [(entries[Place(name, None, q)],) * len(matrix.faults) for name in (GOOD_ALONE, SERVER_ALONE)]
        rows = [tuple(entries[Place(rule, fault, q)] for fault in matrix.faults) for rule in matrix.rules]
        seeds = "1 seed" if matrix.seeds == 1 else f"{matrix.seeds} seeds"
        title = f"{run.task_name}, {q} of {run.workers} workers faulty, {run.steps} steps, {seeds}"
        found.append(Grid(title, q, matrix.faults, (*controls, *rows)))
    return found


def _entry(place: Place, jobs: Sequence[Job], results: Results) -> Entry:
    there = [results[job.key] for job in jobs if job.key in results]
    done = [outcome for outcome in there if isinstance(outcome, Outcome)]
    accuracies = [outcome.accuracy[-1] for outcome in done]
    losses = [outcome.train_loss[-1] for outcome in done]
    return Entry(
        **place._asdict(),
        told=place.rule if place.fault is None else describe(jobs[0].run.rule, PARTS),
        n=len(done),
        accuracy=_mean(accuracies),
        lowest_accuracy=min((value for value in accuracies if value is not None), default=None),
        train_loss=None if None in losses else _mean(losses),
        diverged=losses.count(None),
        faulty_kept=_mean([outcome.faulty_kept for outcome in done]),
        skipped=_mean([outcome.skipped for outcome in done]),
        seconds=_mean([outcome.seconds for outcome in done]),
        errors=tuple(outcome.error for outcome in there if isinstance(outcome, Failed)),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None
