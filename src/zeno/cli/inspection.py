"""The commands that show runs: suspects, report and watch."""

import json
import sys
import time
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from zeno.cli.console import err, out
from zeno.cli.options import JSON, RUNS

if TYPE_CHECKING:
    from zeno.report.run_view import RunView

EXIT_SUSPECT = 3
REPORT_FILE = "report.html"
LARGEST = sys.float_info.max  # JSON has no infinity
WAIT = 0.2  # seconds between two looks at a folder


def suspects(
    run: list[Path] = RUNS,
    fail_on_suspect: bool = typer.Option(False, "--fail-on-suspect", help="Exit with code 3 if a worker is suspect."),
    as_json: bool = JSON,
) -> None:
    """Show which workers are suspect: those that fail too often, or that harm.

    At most 1 % of runs without faults ever name a suspect, if all workers have the same kind of data.
    """
    from zeno.report.tables import ledger_table, skipped_text

    found = _read(run)
    if as_json:
        results = [
            {
                "name": view.name,
                "folder": str(folder),
                "settings": view.settings,
                "notes": view.notes,
                "says": str(view.ledger),
                "steps": view.ledger.steps,
                "error_rate": view.ledger.error_rate,
                "threshold": view.ledger.threshold,
                "suspects": view.ledger.suspects,
                "suspect_names": view.ledger.suspect_names,
                "workers": [{**asdict(row), "evidence": min(row.evidence, LARGEST)} for row in view.ledger.rows],
            }
            for folder, view in found.items()
        ]
        print(json.dumps(results, indent=2, allow_nan=False))
    else:
        for view in found.values():
            table = ledger_table(view.ledger, any(record.arrivals is not None for record in view.records))
            table.title = Text(f"{view.name}, {view.ledger.steps} steps") if len(found) > 1 else None
            out.print(table)
            if skipped := skipped_text(view):
                out.print(skipped, soft_wrap=True)
            out.print(str(view.ledger), soft_wrap=True)
    if fail_on_suspect and any(view.ledger.suspects for view in found.values()):
        raise typer.Exit(EXIT_SUSPECT)


def report(
    run: list[Path] = RUNS,
    file: Path | None = typer.Option(
        None, "--out", help="HTML file to write.", show_default="report.html in RUN; for several runs, here"
    ),
    show: bool = typer.Option(False, "--open", help="Open the page in the browser."),
) -> None:
    """Write an HTML page: curves, suspects, and which workers were dropped when. Several runs are compared."""
    from zeno.records.files import write_atomically
    from zeno.report.page.html import build

    if file is not None and not file.parent.is_dir():
        raise ValueError(
            f"There is no folder {file.parent} for the report. Create it, or name another file with --out."
        )
    file = file or (run[0] / REPORT_FILE if len(run) == 1 else Path(REPORT_FILE))
    with err.status("reading the records"):
        write_atomically(file, build(list(_read(run).values())))
    print(f"the report is in {file} ({file.stat().st_size / 1e6:.1f} MB)")
    if show:
        webbrowser.open(file.resolve().as_uri())


def _read(folders: list[Path]) -> "dict[Path, RunView]":
    """The runs in folders; problems with them are printed as notes."""
    from zeno.report.run_view import read_runs

    views = read_runs(folders)
    for view in views.values():
        for note in view.notes:
            print(f"note: {view.name}: {note}", file=sys.stderr)
    return views


def watch(
    run: list[Path] = RUNS,
    port: int = typer.Option(0, help="Port on 127.0.0.1.", show_default="any free port"),
    show: bool = typer.Option(False, "--open", help="Open the page in the browser."),
) -> None:
    """Serve the page of `zeno report` on 127.0.0.1 during training. It updates itself, and ends with the runs.

    Waits for the runs to begin if the folders are missing or empty.
    """
    from zeno.report.page import live
    from zeno.report.run_view import runs_so_far

    for folder in run:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"A run is watched in its folder. Found the file {folder}. Name the folder of a run.")
    if not runs_so_far(run):
        print(f"waiting for a run to begin in {', '.join(map(str, run))} (Ctrl-C ends it)", flush=True)
        while not runs_so_far(run):
            time.sleep(WAIT)
    again = f"zeno report {' '.join(map(str, run))}"
    if live.all_over(run):
        raise ValueError(f"No run in {run[0]} is training. To look at its results: {again}")

    def say(address: str) -> None:
        print(f"watching at {address} (Ctrl-C ends it)", flush=True)
        if show:
            webbrowser.open(address)

    if live.serve(run, port, say=say):
        print(f"the run has ended; to keep the page: {again}")
