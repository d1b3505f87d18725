"""The commands that list names: rules, faults, tasks; and `zeno data`, which downloads data sets."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from zeno.cli.catalogue import constant
from zeno.cli.console import out
from zeno.cli.options import option
from zeno.problem import download
from zeno.problem.registry import find

FROM_THE_RUN = ("data", "shape", "classes")  # parameters of tasks and models that the user does not write


def rules() -> None:
    """List the aggregation rules, which combine candidates into an update."""
    _print("rule", constant("rules", "RULES"))
    _print("pre-aggregator, before a rule: nnm+median", constant("rules", "PRE_AGGREGATORS"))


def faults() -> None:
    """List the faults that workers of a run can have."""
    schedule = constant("faults.fault", "SCHEDULE")
    _print("fault", constant("faults", "FAULTS"), tuple(schedule))
    table = Table("parameter of every fault, as in zero(on=3)+crash(on=2, start=100)", "description")
    for parameter in inspect.signature(constant("faults.fault", "Fault")).parameters.values():
        table.add_row(f"{parameter.name}={parameter.default}", schedule[parameter.name])
    out.print(table)


def tasks() -> None:
    """List the tasks, and the models and splits that can be used with them."""
    _print("task", constant("problem.tasks", "TASKS"))
    _print("model", constant("problem.models", "MODELS"))
    _print("split", constant("problem.splits", "SPLITS"))


def _print(what: str, known: Mapping[str, Callable[..., Any]], left_out: tuple[str, ...] = FROM_THE_RUN) -> None:
    table = Table(what, "description")
    for name, definition in known.items():
        parameters = inspect.signature(definition).parameters.values()
        shown = [str(p.replace(annotation=p.empty)) for p in parameters if p.name not in left_out]
        summary = (inspect.getdoc(definition) or "").partition("\n")[0]
        table.add_row(f"{name}({', '.join(shown)})" if shown else name, summary)
    out.print(table)


def data(
    name: str = typer.Argument(..., help=f"Data set: {', '.join(download.SOURCES)}."),
    to: Path | None = option("Folder to put it in.", "where tasks look for it"),
    url: str | None = option("URL of the folder to download from.", "the official one"),
) -> None:
    """Download a data set, verify its checksum, and unpack it where tasks look for it."""
    find("data set", name, download.SOURCES)
    folder = to or download.data_folder() / name
    download.fetch(name, folder, url)
    print(f"{name} is in {folder}")
