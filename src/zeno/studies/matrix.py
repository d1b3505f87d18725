"""Every rule against every fault, for several numbers of faulty workers: which rule survives what.

A cell of the matrix is one run: a rule, a fault, a number of faulty workers and a seed. Cells are trained side by side
in processes of their own. A matrix folder holds `matrix.toml` (the settings) and `cells.jsonl` (one JSON line a cell,
flushed as it comes, by the settings of its run), so that a matrix that was stopped goes on with what is missing.
"""

import copy
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zeno.faults import FAULTS, Crash, Fault
from zeno.problem import tasks
from zeno.problem import threads as cores
from zeno.problem.registry import describe
from zeno.problem.threads import one_thread
from zeno.records.folder import summarize
from zeno.rules import PARTS, RULES, Mean, Rule
from zeno.studies.compare import with_the_most_it_bears
from zeno.studies.outcomes import Outcomes
from zeno.studies.processes import Died, in_processes
from zeno.training.interrupt import Stop, Stopped
from zeno.training.loop import train
from zeno.training.run import RULE_SETTINGS, Run, from_settings, key_of, number_or_text

MATRIX_FILE = "matrix.toml"
CELLS_FILE = "cells.jsonl"
ALL = "all"
REFERENCE = "mean of the good workers"  # the others crash; the batches of the good ones are those of every cell
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
    "zeno_batch_size": 32,
}


@dataclass(frozen=True)
class Cell:
    """One run, and where its result belongs."""

    rule: str  # the row: as it was asked for; `run` has what it was told
    fault: str | None  # the column; None: all of them
    faulty: int  # the table
    run: Run

    @property
    def key(self) -> str:
        return key_of(self.run.to_toml())


@dataclass(frozen=True)
class Result:
    """What came of a cell."""

    accuracy: float | None = None  # on the test set, at the end
    train_loss: float | None = None
    diverged: bool = False  # the loss was not finite at the end
    faulty_kept: float | None = None
    skipped: int = 0  # steps
    seconds: float | None = None
    error: str | None = None  # why there is nothing else


@dataclass(frozen=True)
class Matrix:
    """What to train: `plan` makes one from plain settings."""

    settings: Mapping[str, Any]  # that it was made from
    rules: tuple[str, ...]
    faults: tuple[str, ...]
    faulty: tuple[int, ...]
    seeds: int
    base: Run  # what all cells share
    cells: tuple[Cell, ...]

    def to_toml(self) -> str:
        """The settings as a TOML file that `zeno matrix` reads back."""
        values = {**self.settings, "rule": self.rules, "fault": self.faults, "faulty": self.faulty, "seeds": self.seeds}
        lines = [f"{name} = {json.dumps(value, ensure_ascii=False, default=str)}\n" for name, value in values.items()]
        return "".join(lines)


@one_thread()  # every run tries its rule on a few numbers
def plan(settings: Mapping[str, Any]) -> Matrix:
    """The matrix of these settings: as for `from_settings`, but `rule`, `fault` and `faulty` may be lists; and `seeds`.

    Rules are told of as many faulty workers as there are, unless `trim` is given, or of the most that they bear. What
    is written out for one rule wins. Names that come to the same are taken once.
    """
    settings = {**DEFAULTS, **settings}
    shared = dict(settings)
    rules = _texts("rule", shared.pop("rule"), RULES)
    faults: dict[str, Fault] = {}
    for text in _texts("fault", shared.pop("fault"), FAULTS):
        fault = from_settings({"rule": "mean", "fault": text}).fault
        faults.setdefault(describe(fault, FAULTS), fault)
    faulty, seeds = _list(shared.pop("faulty")), shared.pop("seeds")
    of_the_rules = {name: number_or_text(shared.pop(name)) for name in RULE_SETTINGS if name in shared}
    shared.setdefault("eval_every", shared["steps"])
    base = from_settings({**shared, "rule": "mean"})
    for q in faulty:
        if not isinstance(q, int) or isinstance(q, bool) or not 1 <= q < base.workers:
            most = base.workers - 1
            raise ValueError(f"A matrix needs faulty from 1 to workers - 1 = {most}. Found faulty={q!r}. Set --faulty.")
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1:
        raise ValueError(f"A matrix needs seeds as a whole number of at least 1. Found seeds={seeds!r}.")
    if not (rules and faults and faulty):
        raise ValueError("A matrix needs at least one rule, one fault and one number of faulty workers. Found none.")

    told: dict[str, list[Rule]] = {}  # for each number of faulty workers
    for text in rules:
        each = [with_the_most_it_bears(text, {"trim": q, **of_the_rules}, base.workers) for q in faulty]
        if each not in told.values():
            told[text] = each
    cells = []
    for k, q in enumerate(faulty):
        checked = replace(base, faulty=q)
        by_rule = {text: replace(checked, rule=each[k]) for text, each in told.items()}
        by_fault = {name: replace(checked, fault=fault) for name, fault in faults.items()}
        for seed in range(base.seed, base.seed + seeds):
            cells.append(Cell(REFERENCE, None, q, _changed(checked, rule=Mean(), fault=Crash(), seed=seed)))
            for text, run in by_rule.items():
                cells += [Cell(text, f, q, _changed(run, fault=by_fault[f].fault, seed=seed)) for f in faults]
    return Matrix(settings, tuple(told), tuple(faults), tuple(faulty), seeds, base, tuple(cells))


def _changed(run: Run, **values: Any) -> Run:
    """`replace` without the checks, each of which was made for another cell: thousands of them take long."""
    new = copy.copy(run)
    for name, value in values.items():
        object.__setattr__(new, name, value)
    return new


def _texts(name: str, value: object, known: Mapping[str, object]) -> list[str]:
    """The names that were asked for, each once; `all` stands for those that are known."""
    texts = _list(value)
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"A matrix needs each {name} as text. Found {text!r}.")
    return list(dict.fromkeys(one for text in texts for one in (known if text == ALL else [text.strip()])))


def _list(value: object) -> list[Any]:
    return list(dict.fromkeys(value)) if isinstance(value, list | tuple) else [value]


def measure(run: Run) -> Result:
    """Trains one cell; an exception is its result."""
    began = time.perf_counter()
    try:
        summary = summarize(train(run))
    except Exception as error:
        return Result(seconds=time.perf_counter() - began, error=f"{type(error).__name__}: {error}")
    return Result(
        accuracy=summary.accuracy,
        train_loss=summary.train_loss,
        diverged=summary.train_loss is None,
        faulty_kept=summary.faulty_kept,
        skipped=summary.skipped,
        seconds=time.perf_counter() - began,
    )


def missing(matrix: Matrix, results: Mapping[str, Result]) -> list[Run]:
    """The runs that have no result, or failed; each once, and shuffled: the first ones tell how long all will take."""
    found = {cell.key: cell.run for cell in matrix.cells}
    runs = [run for key, run in found.items() if key not in results or results[key].error is not None]
    random.Random(0).shuffle(runs)
    return runs


def run(
    matrix: Matrix,
    folder: Path,
    processes: int | None = None,
    on_result: Callable[[Run, Result], None] | None = None,
) -> dict[str, Result]:
    """Trains what is missing in the folder, and returns all results by the key of their cells.

    Ctrl-C and SIGTERM raise `KeyboardInterrupt`; what was done until then is in the folder, for `read`.
    """
    if processes is not None and processes < 1:
        raise ValueError(f"A matrix needs at least one process. Found processes={processes}.")
    task = tasks.load(str(matrix.base.task), Path(matrix.base.data) if matrix.base.data else None)  # says what is wrong
    if matrix.base.model:
        tasks.with_model(task, matrix.base.model).model()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MATRIX_FILE).write_text(matrix.to_toml(), encoding="utf-8")
    results = read(folder)
    cells = _cells(folder)
    cells.mend()
    with Stop("stopping; what is done is kept") as stop:
        jobs = missing(matrix, results)
        for one, outcome in in_processes(measure, jobs, processes or cores.number(), lambda: stop.asked is not None):
            result = Result(error=f"died: {outcome.how}") if isinstance(outcome, Died) else outcome
            results[key_of(one.to_toml())] = result
            cells.append(one.to_toml(), result)
            if on_result is not None:
                on_result(one, result)
        if stop.asked is not None:
            raise Stopped(stop.asked)
    return results


def read(folder: Path) -> dict[str, Result]:
    """The results of a matrix folder by the key of their cells; a line that was cut off is left out."""
    return _cells(folder).read()


def _cells(folder: Path) -> Outcomes[Result]:
    return Outcomes(folder / CELLS_FILE, Result, key_of)


@dataclass(frozen=True)
class Entry:
    """A rule against a fault, over the seeds; None where there is nothing."""

    rule: str
    told: str  # the rule, with how many faulty workers it was told of
    fault: str | None  # None: all of them
    faulty: int
    n: int  # seeds that were trained to the end, and that the means are over
    accuracy: float | None
    lowest_accuracy: float | None
    train_loss: float | None  # None too where it was not finite in one of them
    diverged: int  # in how many seeds the loss was not finite
    faulty_kept: float | None
    skipped: float | None  # steps
    seconds: float | None
    errors: tuple[str, ...]  # of seeds that failed


@dataclass(frozen=True)
class Grid:
    """All entries for one number of faulty workers."""

    title: str
    faulty: int
    faults: tuple[str, ...]  # the columns
    rows: tuple[tuple[Entry, ...], ...]  # an entry for each fault; the first row is the reference


def grids(matrix: Matrix, results: Mapping[str, Result]) -> list[Grid]:
    """What there is of the matrix, one grid for each number of faulty workers."""
    places: dict[tuple[str, str | None, int], list[Cell]] = {}
    for cell in matrix.cells:
        places.setdefault((cell.rule, cell.fault, cell.faulty), []).append(cell)
    entries = {place: _entry(cells, results) for place, cells in places.items()}
    run, found = matrix.base, []
    for q in matrix.faulty:
        reference = entries[REFERENCE, None, q]
        rows = [tuple(entries[rule, fault, q] for fault in matrix.faults) for rule in matrix.rules]
        seeds = "1 seed" if matrix.seeds == 1 else f"{matrix.seeds} seeds"
        title = f"{run.task}, {q} of {run.workers} workers faulty, {run.steps} steps, {seeds}"
        found.append(Grid(title, q, matrix.faults, ((reference,) * len(matrix.faults), *rows)))
    return found


def _entry(cells: Sequence[Cell], results: Mapping[str, Result]) -> Entry:
    """The cells of one place, a seed each."""
    there = [results[cell.key] for cell in cells if cell.key in results]
    done = [result for result in there if result.error is None]
    accuracies = [result.accuracy for result in done if result.accuracy is not None]
    first = cells[0]
    return Entry(
        rule=first.rule,
        told=first.rule if first.fault is None else describe(first.run.rule, PARTS),
        fault=first.fault,
        faulty=first.faulty,
        n=len(done),
        accuracy=_mean(accuracies),
        lowest_accuracy=min(accuracies, default=None),
        train_loss=None if any(r.diverged for r in done) else _mean([r.train_loss for r in done]),
        diverged=sum(result.diverged for result in done),
        faulty_kept=_mean([result.faulty_kept for result in done]),
        skipped=_mean([result.skipped for result in done]),
        seconds=_mean([result.seconds for result in done]),
        errors=tuple(result.error for result in there if result.error is not None),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None
