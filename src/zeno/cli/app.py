"""The command line: settings in, runs and what can be seen of them out."""

import inspect
import json
import logging
import os
import re
import signal
import sys
import time
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from zeno.faults import FAULTS, SCHEDULE, Fault
from zeno.problem import download
from zeno.problem.dataset import SPLITS
from zeno.problem.models import MODELS
from zeno.problem.registry import describe, find, parse, split
from zeno.problem.tasks import TASKS, data_folder
from zeno.records.folder import RECORDS_FILE, RUN_FILE, Record, read, summarize, writing
from zeno.records.ledger import Ledger, in_words, ledger_of
from zeno.report import page as look
from zeno.report import tables as report
from zeno.report.page import live
from zeno.rules import PRE_AGGREGATORS, PRESETS, RULES, Zeno, bears
from zeno.studies import compare as comparison
from zeno.studies import matrix as matrices
from zeno.studies import reproduction as experiments
from zeno.studies.reproduction import pages
from zeno.training.execution import ONLY_RAY, Setup, setup_from, without_setup
from zeno.training.loop import train as run_training
from zeno.training.run import DEFAULT_RULE, PAPER_TRIM, REGISTRIES, Run, from_settings, kind_of, name_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

app = typer.Typer(
    help="Distributed SGD that survives any number of faulty workers, as long as one is good.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out, err = Console(), Console(stderr=True)
EXIT_SUSPECT = 3
REPORT_FILE = "report.html"


def main() -> None:
    """Runs the command line; a mistake of the user's ends with one line and exit code 2."""
    logging.getLogger("zeno").addHandler(_Notes())
    logging.getLogger("zeno").setLevel(logging.INFO)
    try:
        app()
    except (ValueError, OSError) as error:
        if os.environ.get("ZENO_TRACEBACK"):
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


class _Notes(logging.Handler):
    """What the library has to say, above the progress bars."""

    def emit(self, record: logging.LogRecord) -> None:
        err.print(f"note: {record.getMessage()}", markup=False, highlight=False, soft_wrap=True)


def with_settings(setup: bool = True, **changed: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command a flag for every setting of a Run, and those the user set as its argument `settings`.

    `changed` are defaults of the command's own, for its help; a flag is left out where the command has its own. Without
    `setup` there are no flags for how a run is carried out.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = dict(inspect.signature(command).parameters)
        del own["settings"]
        flags = {name: flag for name, flag in _flags(changed, setup).items() if name not in own}

        def call(**given: Any) -> None:
            settings = {name: given.pop(name) for name in flags}
            command(settings={name: value for name, value in settings.items() if value is not None}, **given)

        call.__name__, call.__doc__ = command.__name__, command.__doc__
        call.__signature__ = inspect.Signature(list({**own, **flags}.values()))  # type: ignore[attr-defined]
        return call

    return decorate


def _flags(changed: Mapping[str, Any], setup: bool) -> dict[str, inspect.Parameter]:
    result = {}

    def add(name: str, kind: Any, default: object, panel: str, text: str) -> None:
        shown = changed.get(name, default)
        option = typer.Option(
            None, help=text, rich_help_panel=panel, show_default=False if shown is None else str(shown)
        )
        result[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind | None)

    for f in (*fields(Run), *(fields(Setup) if setup else ())):
        default = describe(f.default, REGISTRIES[f.name]) if f.name in REGISTRIES else f.default
        default = DEFAULT_RULE if f.name == "rule" else default
        add(f.name, kind_of(f), default, f.metadata["panel"], f.metadata["help"])
        if f.name == "rule":
            text = "Candidates the rule gives up as faulty (b): trim or faulty of the rule, and of what is before it."
            add("trim", str, f"{PAPER_TRIM}; zeno_auto: auto", "Rule", text)
            text = "Weight of Zeno's penalty on the size of a candidate; auto: measured by the server's own gradient."
            add("rho", str, f"{Zeno.rho}; zeno_auto: auto", "Rule", text)
            text = (
                "Samples of the server's own: those that Zeno scores on (n_r), or of its own gradient; auto: as needed."
            )
            add("zeno_batch_size", str, f"{Zeno.batch_size}; zeno_auto: auto", "Rule", text)
    return result


FILE = typer.Argument(None, help="A TOML file with settings, such as the run.toml of a run folder. Flags win.")
OUT = typer.Option(
    None, "--out", help="Run folder to write; must not hold a run yet.", show_default="runs/COMMAND-TIME"
)
JSON = typer.Option(False, "--json", help="Print the results as JSON, for scripts.")


@app.command()
@with_settings()
def train(
    file: Path | None = FILE,
    resume: Path | None = typer.Option(
        None, help="Go on with the run in this folder, from its newest checkpoint.", show_default=False
    ),
    out_folder: Path | None = OUT,
    as_json: bool = JSON,
    *,
    settings: dict[str, Any],
) -> None:
    """Train once, and write a run folder: settings, one record a step, checkpoints, curves, the model."""
    if resume is not None:
        if file is not None or out_folder is not None:
            raise ValueError("A run is resumed with its own settings, in its own folder. Leave out the file and --out.")
        if not (resume / RUN_FILE).is_file():
            raise ValueError(f"There is no run to resume in {resume}. Name a folder that `zeno train` has written.")
        file = resume / RUN_FILE
    from_file = _read_toml(file)
    if settings.get("cluster") == "local":  # what the file says of a Ray cluster does not apply
        from_file = {name: value for name, value in from_file.items() if name not in ONLY_RAY}
    everything = {**from_file, **settings}
    if resume is not None and str(everything.get("task")).startswith("Task("):
        raise ValueError(f"The run in {resume} has a task of your own. Resume it in Python, by zeno.train.")
    run = from_settings(without_setup(everything))
    folder = resume or _new_folder(out_folder, "train")
    _execute({name_of(run.rule): run}, setup_from(everything), folder, as_json, resume is not None)


@app.command()
@with_settings(**comparison.DEFAULTS, trim="faulty + 1, or the most that a rule bears")
def compare(
    file: Path | None = FILE,
    rule: list[str] | None = typer.Option(
        None, help="A rule to compare; repeat for more.", show_default=", ".join(comparison.RULES)
    ),
    out_folder: Path | None = OUT,
    as_json: bool = JSON,
    *,
    settings: dict[str, Any],
) -> None:
    """Train with several rules over the same batches and faults, and say which one survives.

    Without arguments: handwritten digits, 20 workers, 12 of them with flipped labels; under a minute.
    """
    from_file = _read_toml(file)
    rules = list(comparison.RULES)
    if "rule" in from_file:  # stands in for the one of its name
        own = str(from_file.pop("rule"))
        rules = [name for name in rules if name != parse(split(own)[-1])[0]] + [own]
    everything = {**from_file, **settings}
    runs = comparison.runs(without_setup(everything), rule or rules)
    _execute(runs, setup_from(everything), _new_folder(out_folder, "compare"), as_json)


@app.command()
@with_settings(
    setup=False, steps=matrices.DEFAULTS["steps"], eval_every="steps", trim="faulty, or the most that a rule bears"
)
def matrix(
    file: Path | None = FILE,
    rule: list[str] | None = typer.Option(
        None, help="A rule, or all; repeat for more.", show_default=", ".join(matrices.DEFAULTS["rule"])
    ),
    fault: list[str] | None = typer.Option(None, help="A fault, or all; repeat for more.", show_default="all"),
    faulty: list[int] | None = typer.Option(
        None,
        help="Number of workers to make faulty (q); repeat for more.",
        show_default=", ".join(map(str, matrices.DEFAULTS["faulty"])),
    ),
    seeds: int | None = typer.Option(None, help="Seeds for each cell, from --seed on.", show_default="1"),
    processes: int | None = typer.Option(None, help="Cells to train at a time.", show_default="as many as cores"),
    resume: Path | None = typer.Option(
        None, help="Go on with the matrix in this folder: what is missing, or failed.", show_default=False
    ),
    out_folder: Path | None = OUT,
    as_json: bool = JSON,
    *,
    settings: dict[str, Any],
) -> None:
    """Train every rule against every fault, and say which one survives what.

    Each rule is told of as many faulty workers as it bears. The first row is the mean of the good workers.
    """
    own = {"rule": rule, "fault": fault, "faulty": faulty, "seeds": seeds}
    settings = {**settings, **{name: value for name, value in own.items() if value not in (None, [])}}
    if resume is not None:
        if file is not None or out_folder is not None or settings:
            raise ValueError(
                "A matrix is resumed with its own settings, in its own folder. Only --processes may change."
            )
        if not (resume / matrices.MATRIX_FILE).is_file():
            raise ValueError(f"There is no matrix to resume in {resume}. Name a folder that `zeno matrix` has written.")
        file = resume / matrices.MATRIX_FILE
    planned = matrices.plan(without_setup({**_read_toml(file), **settings}))
    _fill(planned, resume or _new_folder(out_folder, "matrix"), processes, as_json)


@app.command()
def reproduce(
    figure: list[str] | None = typer.Argument(
        None, help="Figures of the paper: label_flip, or one panel, label_flip/q12.", show_default="all"
    ),
    scale: str | None = typer.Option(
        None,
        help="paper (full CNN, 200 epochs, 10 repeats), small (a quarter as wide, 10 epochs), smoke (seconds).",
        show_default="small",
    ),
    data: str | None = typer.Option(
        None, help="Folder with the files of cifar10.", show_default="where `zeno data` puts them"
    ),
    model: str | None = typer.Option(None, help="Network in place of the scale's.", show_default=False),
    epochs: int | None = typer.Option(None, help="Epochs in place of the scale's.", show_default=False),
    repeats: int | None = typer.Option(None, help="Repeats of every run in place of the scale's.", show_default=False),
    seed: int | None = typer.Option(None, help="Seed of the first repeat.", show_default="0"),
    precision: str | None = typer.Option(
        None, help="What gradients are computed in: float32, or bf16 on processors made for it.", show_default="float32"
    ),
    device: str = typer.Option("cpu", help="What to compute on, such as cuda."),
    processes: int | None = typer.Option(None, help="Runs to train at a time.", show_default="one a core; one on cuda"),
    resume: Path | None = typer.Option(
        None, help="Go on in this folder: what is missing there, at its scale.", show_default=False
    ),
    out_folder: Path | None = OUT,
    as_json: bool = JSON,
) -> None:
    """Run the paper's experiments on its data, and say of each of its claims whether it holds.

    Needs CIFAR-10 (`zeno data cifar10`), but for the scale smoke. What is finished is kept, also by Ctrl-C.
    """
    given = {"model": model, "epochs": epochs, "repeats": repeats, "repeats_of_hard": repeats, "seed": seed}
    given |= {"precision": precision}
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if resume is not None:
        if out_folder is not None or scale is not None or changed:
            raise ValueError(
                "A reproduction is resumed at its own scale, in its own folder. Leave out what changes it."
            )
        if not (resume / experiments.SCALE_FILE).is_file():
            raise ValueError(
                f"There is nothing to resume in {resume}. Name a folder that `zeno reproduce` has written."
            )
        chosen = experiments.scale_of(resume)
    else:
        chosen = replace(find("scale", scale or "small", experiments.SCALES), **changed)
    chosen = replace(chosen, data=data)
    folder = resume or _new_folder(out_folder, f"reproduce-{chosen.name}")
    to_go_on = " ".join([_to_go_on(folder, "reproduce"), *(figure or ()), *(["--data", data] if data else [])])
    _reproduce(chosen, experiments.figures(chosen, figure or ()), folder, device, processes, as_json, to_go_on)


RUNS = typer.Argument(help="Run folders; the folder of a comparison stands for all of its runs.")


@app.command()
def suspects(
    run: list[Path] = RUNS,
    fail_on_suspect: bool = typer.Option(False, "--fail-on-suspect", help="Exit with code 3 if a worker is suspect."),
    as_json: bool = JSON,
) -> None:
    """Say who is suspect: which workers are dropped more often than a good one would be.

    Of runs without faults whose workers have the same kind of data, at most 1 % ever name anybody, at any time.
    """
    found = {name: (folder, look.seen(folder, name)) for name, folder in look.runs_in(run).items()}
    ledgers = {name: ledger_of(seen.records, seen.workers) for name, (_, seen) in found.items()}
    for name, (_, seen) in found.items():
        for note in seen.notes:
            print(f"note: {name}: {note}", file=sys.stderr)
    if as_json:
        print(json.dumps([_ledger_json(name, *found[name], ledger) for name, ledger in ledgers.items()], indent=2))
    else:
        for name, ledger in ledgers.items():
            table = report.ledger_table(ledger)
            table.title = Text(f"{name}, {ledger.steps} steps") if len(ledgers) > 1 else None
            out.print(table)
            out.print(in_words(ledger), markup=False, highlight=False, soft_wrap=True)
    if fail_on_suspect and any(ledger.suspects for ledger in ledgers.values()):
        raise typer.Exit(EXIT_SUSPECT)


def _ledger_json(name: str, folder: Path, seen: look.Seen, ledger: Ledger) -> dict[str, Any]:
    return {
        "name": name,
        "folder": str(folder),
        "notes": seen.notes,
        "steps": ledger.steps,
        "error_rate": ledger.error_rate,
        "threshold": ledger.threshold,
        "suspects": ledger.suspects,
        "workers": [asdict(row) for row in ledger.rows],
    }


@app.command(name="report")
def report_page(
    run: list[Path] = RUNS,
    file: Path | None = typer.Option(
        None, "--out", help="HTML file to write.", show_default="report.html in RUN; of several, here"
    ),
    show: bool = typer.Option(False, "--open", help="Open it in the browser."),
) -> None:
    """Write a page to look at: curves, the map of who was dropped when, the suspects; of several runs, a comparison."""
    folders = look.runs_in(run)
    file = file or (run[0] / REPORT_FILE if len(run) == 1 else Path(REPORT_FILE))
    with err.status(f"reading {len(folders)} run{'s' * (len(folders) > 1)}"):
        file.write_text(look.build([look.seen(folder, name) for name, folder in folders.items()]), encoding="utf-8")
    print(f"the report is in {file} ({file.stat().st_size / 1e6:.1f} MB)")
    if show:
        webbrowser.open(file.resolve().as_uri())


@app.command()
def watch(
    run: list[Path] = RUNS,
    port: int = typer.Option(0, help="Port of 127.0.0.1.", show_default="any that is free"),
    show: bool = typer.Option(False, "--open", help="Open it in the browser."),
) -> None:
    """Serve the same page on 127.0.0.1 while runs go on, also on a cluster; it moves by itself, and ends with them."""
    missing = [folder for folder in run if not folder.is_dir()]
    if missing:
        raise ValueError(f"There is no folder {missing[0]} to watch. Name the run folder that is being written.")
    if live.all_over(run):
        raise ValueError(f"No run goes on in {run[0]}. To look at what is there: zeno report {' '.join(map(str, run))}")

    def say(address: str) -> None:
        print(f"watching at {address} (Ctrl-C ends it)", flush=True)
        if show:
            webbrowser.open(address)

    if live.serve(run, port, say=say):
        again = " ".join(map(str, run))
        print(f"the run has ended; to keep the page: zeno report {again}")


@app.command()
def rules() -> None:
    """List the rules: what makes one update of the candidates."""
    _list("rule", RULES)
    _list("preset", PRESETS)
    _list("before a rule, as in nnm+median", PRE_AGGREGATORS)


@app.command()
def faults() -> None:
    """List the faults that a run can be given."""
    _list("fault", FAULTS)
    table = Table("of every fault, as in zero(on=3)+crash(on=2, start=100)", "what it is")
    for f in fields(Fault):
        table.add_row(f"{f.name}={f.default}", SCHEDULE[f.name])
    out.print(table)


@app.command()
def tasks() -> None:
    """List the tasks, and the models and splits that they can be given."""
    _list("task", TASKS)
    _list("model", MODELS)
    _list("split", SPLITS)


@app.command()
def data(
    name: str = typer.Argument(..., help=f"Data set: {', '.join(download.SOURCES)}."),
    to: Path | None = typer.Option(None, help="Folder to put it in.", show_default="where tasks look for it"),
    url: str | None = typer.Option(None, help="Folder on the web to fetch it from.", show_default="the official one"),
) -> None:
    """Download a data set, check it against its known checksum, and unpack it where tasks look for it."""
    find("data set", name, download.SOURCES)
    folder = to or data_folder() / name
    download.fetch(name, folder, url)
    print(f"{name} is in {folder}")


@app.command()
def bench(
    what: str = typer.Argument("rules", help="rules, growth, steps, cost, cluster, distributed, nan, or all."),
    size: list[int] = typer.Option([1_310_922, 10_000_000], help="Parameters (d) for rules; repeat for more."),
    threads: int = typer.Option(2, help="Torch threads."),
    json_file: Path | None = typer.Option(None, "--json", help="Write the figures to this file."),
) -> None:
    """Measure the rules beside those of other packages, the parts of a step, and a Ray cluster, in one run.

    What is not installed is left out, with a line: pip install 'zeno-sgd[bench,ray]' brings it.
    """
    from benchmarks import show  # not before it is asked for: it imports what only a benchmark needs

    show.run(what, size, threads, json_file, out)


def _read_toml(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        settings: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        return settings
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file} is not valid TOML: {error}") from None


def _new_folder(folder: Path | None, command: str) -> Path:
    if folder is None:
        named = Path("runs") / f"{command}-{time.strftime('%Y%m%d-%H%M%S')}"
        return named if not named.exists() else named.with_name(f"{named.name}-{os.getpid()}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"The run folder {folder} is not empty. Name another one with --out.")
    return folder


def _execute(runs: Mapping[str, Run], setup: Setup, folder: Path, as_json: bool, resume: bool = False) -> None:
    """Trains each run in turn, then shows and writes what came out; Ctrl-C and SIGTERM keep what there is."""
    done: dict[str, list[Record]] = {}
    interrupted: KeyboardInterrupt | None = None
    for name, run in runs.items():
        told = bears(run.rule)
        if told is not None and run.faulty > told:
            print(f"note: {run.faulty} workers are faulty, {name} is told of {told}", file=sys.stderr)
    with ExitStack() as stack:
        if len(runs) > 1:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(writing(folder))  # whoever watches sees that more runs are to come
        if setup.cluster == "ray":  # one for all runs
            from zeno.workers.ray import Session

            stack.enter_context(Session(setup.address))
        progress = stack.enter_context(
            Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[workers]}"),
                TextColumn("{task.fields[accuracy]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=err,
            )
        )
        bars = {
            name: progress.add_task(name, total=run.steps, start=False, accuracy="", workers="")
            for name, run in runs.items()
        }
        for name, run in runs.items():
            where = _subfolder(folder, runs, name)
            done[name] = []
            progress.start_task(bars[name])

            def on_record(record: Record, name: str = name) -> None:
                done[name].append(record)
                progress.update(bars[name], completed=record.step + 1)
                if setup.cluster != "local":
                    counts = [f"{n} {kind}" for kind, n in record.workers.items() if n or kind == "alive"]
                    progress.update(bars[name], workers=", ".join(counts))
                if record.accuracy is not None:
                    progress.update(bars[name], accuracy=f"accuracy {record.accuracy:.1%}")

            try:
                done[name] = run_training(run, where, on_record, setup, resume)
                progress.update(bars[name], completed=run.steps)
            except KeyboardInterrupt as stopped:
                interrupted = stopped
                done[name] = read(where) if (where / RECORDS_FILE).exists() else []
                break
            except Exception:
                if done[name]:
                    err.print(f"stopped by an error; {_to_go_on(where)}", markup=False, soft_wrap=True)
                raise
    _show(runs, done, folder, as_json)
    if interrupted is not None:
        kept = "the records up to here, and the model, are kept" if any(done.values()) else "before the first step"
        how = f"; {_to_go_on(where)}" if done[name] else ""
        print(f"interrupted: {kept}{how}", file=sys.stderr)
        raise typer.Exit(128 + getattr(interrupted, "signal_number", signal.SIGINT))


def _to_go_on(folder: Path, command: str = "train") -> str:
    return f"to go on: zeno {command} --resume {folder}"


def _subfolder(folder: Path, runs: Mapping[str, Run], name: str) -> Path:
    return folder if len(runs) == 1 else folder / re.sub(r"[^\w.]+", "-", name).strip("-")


def _show(runs: Mapping[str, Run], done: Mapping[str, Sequence[Record]], folder: Path, as_json: bool) -> None:
    some = next(iter(runs.values()))
    faulty = max(run.faulty for run in runs.values())
    fault = f"{faulty} of {some.workers} workers faulty ({describe(some.fault, FAULTS)})" if faulty else "no faults"
    folder.mkdir(parents=True, exist_ok=True)  # not there yet if the first run was interrupted while it started
    title = f"{some.task}, {fault}"
    report.curves(done, folder / "curves.png", title)
    report.workers(done, folder / "workers.png", title)
    seen = [look.seen(_subfolder(folder, runs, name), name) for name in done if done[name]]
    if seen:
        (folder / REPORT_FILE).write_text(look.build(seen), encoding="utf-8")
    results = {
        "folder": str(folder),
        "runs": [{"name": name, **asdict(summarize(records))} for name, records in done.items()],
    }
    (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(results, indent=2))
        return
    table = report.table(done)
    table.title = title
    out.print(table)
    if len(seen) == 1:
        words = in_words(ledger_of(seen[0].records, seen[0].workers))
        out.print(words, markup=False, highlight=False, soft_wrap=True)
    print(f"records, models and curves.png are in {folder}")
    print(f"to see who is suspect, open {folder / REPORT_FILE}")


def _fill(planned: matrices.Matrix, folder: Path, processes: int | None, as_json: bool) -> None:
    """Trains the cells that are missing, then shows and writes what there is; Ctrl-C and SIGTERM keep it."""
    interrupted: KeyboardInterrupt | None = None
    total = len({cell.key for cell in planned.cells})
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("cells"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err,
    ) as progress:
        done = total - len(matrices.missing(planned, matrices.read(folder)))
        bar = progress.add_task("matrix", total=total, completed=done)
        try:
            matrices.run(planned, folder, processes, lambda run, result: progress.update(bar, advance=1))
        except KeyboardInterrupt as stopped:
            interrupted = stopped
        except Exception:
            if (folder / matrices.CELLS_FILE).exists():
                err.print(f"stopped by an error; {_to_go_on(folder, 'matrix')}", markup=False, soft_wrap=True)
            raise
    results = matrices.read(folder)
    if (folder / matrices.CELLS_FILE).exists():
        _show_matrix(planned, matrices.grids(planned, results), folder, as_json)
    errors = [result.error for result in results.values() if result.error is not None]
    if errors:
        print(f"{len(errors)} of {total} cells failed, the first with {errors[0]}", file=sys.stderr)
    if interrupted is not None:
        done = total - len(matrices.missing(planned, results))
        print(f"interrupted: {done} of {total} cells are kept; {_to_go_on(folder, 'matrix')}", file=sys.stderr)
        raise typer.Exit(128 + getattr(interrupted, "signal_number", signal.SIGINT))
    if errors:
        raise typer.Exit(1)


def _show_matrix(planned: matrices.Matrix, grids: Sequence[matrices.Grid], folder: Path, as_json: bool) -> None:
    references = [asdict(grid.rows[0][0]) for grid in grids]
    cells = [asdict(entry) for grid in grids for row in grid.rows[1:] for entry in row]
    settings = {**tomllib.loads(planned.base.to_toml()), **tomllib.loads(planned.to_toml())}
    results = {"folder": str(folder), "settings": settings, "reference": references, "cells": cells}
    (folder / "matrix.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    (folder / "matrix.md").write_text(report.matrix_markdown(grids), encoding="utf-8")
    for grid in grids:
        report.heat_map(grid, folder / f"matrix-q{grid.faulty}.png")
    if as_json:
        print(json.dumps(results, indent=2))
        return
    for grid in grids:
        out.print(f"{grid.title}\n", markup=False, highlight=False, style="italic")
        for table in report.matrix_tables(grid, out.width):
            out.print(table, "")
    out.print(f"test accuracy in percent; bold: the best rule. {report.MARKS}", markup=False, highlight=False)
    print(f"matrix.md, matrix.json, pictures and cells are in {folder}")


def _reproduce(
    scale: experiments.Scale,
    figures: Sequence[experiments.Figure],
    folder: Path,
    device: str,
    processes: int | None,
    as_json: bool,
    to_go_on: str,
) -> None:
    """Trains the runs that are missing, then judges and writes what there is; Ctrl-C and SIGTERM keep it."""
    interrupted: KeyboardInterrupt | None = None
    failed: experiments.RunsFailed | None = None
    to_do = len(experiments.missing(figures, experiments.read(folder)))
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err,
        speed_estimate_period=600,  # runs of several rules take turns
    ) as progress:
        bar = progress.add_task(f"{to_do} runs", total=None)
        try:
            experiments.run(
                scale, figures, folder, device, processes, lambda n, of: progress.update(bar, completed=n, total=of)
            )
        except KeyboardInterrupt as stopped:
            interrupted = stopped
        except experiments.RunsFailed as error:
            failed = error
    curves = experiments.read(folder)
    if curves:
        found, results = pages.write(scale, curves, folder)
        if as_json:
            print(json.dumps(results, indent=2))
        else:
            out.print(pages.claims_table(found))
            print(f"{pages.SUMMARY_FILE}, pictures and curves are in {folder}")
    if interrupted is not None:
        left = len(experiments.missing(figures, curves))
        print(f"interrupted: {left} runs are left; {to_go_on}", file=sys.stderr)
        raise typer.Exit(128 + getattr(interrupted, "signal_number", signal.SIGINT))
    if failed is not None:
        print(f"{failed} {to_go_on[0].upper()}{to_go_on[1:]}", file=sys.stderr)
        raise typer.Exit(1)


def _list(what: str, known: Mapping[str, Any]) -> None:
    table = Table(what, "what it is")
    for name, value in known.items():
        of_the_run = ("data", "shape", "classes")  # what tasks and models get from the run, not from the user
        left_out = (*of_the_run, *SCHEDULE)  # the second are shown once, for all faults
        parameters = [p for p in inspect.signature(value).parameters.values() if p.name not in left_out]
        shown = ", ".join(str(p.replace(annotation=p.empty)) for p in parameters)
        form = f"{name}({shown})" if shown else name
        text = (value.__doc__ or "").strip().splitlines()[0]
        table.add_row(form, text)
    out.print(table)
