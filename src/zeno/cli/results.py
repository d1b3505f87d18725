"""Results of runs and matrices: tables on the terminal, figures and files in the run folder."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from zeno.cli.console import out
from zeno.cli.inspection import REPORT_FILE
from zeno.faults import FAULTS
from zeno.problem.registry import describe
from zeno.records import toml
from zeno.records.files import write_atomically
from zeno.records.folder import RECORDS_FILE
from zeno.records.record import summarize
from zeno.report import figures, matrix, tables
from zeno.report.page import html
from zeno.report.run_view import read_run
from zeno.rules import PARTS
from zeno.studies.matrix import Matrix
from zeno.studies.sweep import Job


def show_runs(jobs: Sequence[Job], folder: Path, as_json: bool) -> bool:
    """Shows and writes the results of the runs that have begun; returns whether there are records."""
    run = max((job.run for job in jobs), key=lambda run: run.faulty)  # a comparison has one run without faults
    fault = describe(run.fault, FAULTS) if run.faulty else None
    faults = f"{run.faulty} of {run.workers} workers faulty ({fault})" if fault else "no faults"
    title = f"{run.task_name}, {faults}"
    views = {job: read_run(job.folder, job.name) for job in jobs if job.folder and (job.folder / RECORDS_FILE).exists()}
    begun = [view for view in views.values() if view.records]
    folder.mkdir(parents=True, exist_ok=True)  # missing if the first run was interrupted before it started
    figures.curves(list(views.values()), folder / "curves.png", title)
    figures.worker_maps(list(views.values()), folder / "workers.png", title)
    if begun:
        write_atomically(folder / REPORT_FILE, html.build(begun))
    runs = [
        {
            "name": job.name,
            "folder": str(job.folder),
            "rule": describe(job.run.rule, PARTS),
            "faulty": job.run.faulty,
            **asdict(summarize(view.records)),
            "suspects": view.ledger.suspects,
        }
        for job, view in views.items()
    ]
    results = {"folder": str(folder), "task": run.task_name, "workers": run.workers, "fault": fault, "runs": runs}
    write_atomically(folder / "results.json", json.dumps(results, indent=2) + "\n")
    if as_json:
        print(json.dumps(results, indent=2))
        return bool(begun)
    table = tables.run_table(list(views.values()))
    table.title = title
    out.print(table)
    for view in begun:
        if skipped := tables.skipped_text(view):
            out.print(skipped if len(begun) == 1 else f"{view.name}: {skipped}", soft_wrap=True)
    if len(begun) == 1:
        out.print(str(begun[0].ledger), soft_wrap=True)
    print(f"records, models and curves.png are in {folder}")
    print(f"the report, with curves and suspects, is {folder / REPORT_FILE}")
    return bool(begun)


def show_matrix(planned: Matrix, grids: Sequence[matrix.Grid], folder: Path, as_json: bool) -> None:
    """Shows and writes the cells that are trained."""
    controls = [asdict(row[0]) for grid in grids for row in grid.rows[: grid.num_controls]]
    cells = [asdict(entry) for grid in grids for row in grid.rows[grid.num_controls :] for entry in row]
    settings = {**toml.loads(planned.base.to_toml()), **toml.loads(planned.to_toml())}
    results = {"folder": str(folder), "settings": settings, "controls": controls, "cells": cells}
    write_atomically(folder / "matrix.json", json.dumps(results, indent=2) + "\n")
    write_atomically(folder / "matrix.md", matrix.matrix_markdown(grids))
    for grid in grids:
        matrix.heat_map(grid, folder / f"matrix-q{grid.faulty}.png")
    if as_json:
        print(json.dumps(results, indent=2))
        return
    for grid in grids:
        out.print(f"{grid.title}\n", style="italic")
        for table in matrix.matrix_tables(grid, out.width):
            out.print(table, "")
    out.print(f"test accuracy in percent; bold: the best rule. {matrix.MARKS}")
    print(f"matrix.md, matrix.json, figures and cells are in {folder}")
