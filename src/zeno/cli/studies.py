"""The commands that train many runs: matrix and reproduce."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from zeno.cli.catalogue import check_names, constant
from zeno.cli.console import out
from zeno.cli.options import FILE, JSON, OUT, new_folder, option, read_toml, settings_to_resume, with_settings
from zeno.problem.registry import find
from zeno.studies.reproduction.scales import SCALE_FILE, SCALES, scale_of
from zeno.training.execution import without_execution
from zeno.training.run import check_values

MATRIX, MATRIX_FILE = constant("studies.matrix", "DEFAULTS"), constant("studies.matrix", "MATRIX_FILE")
FAULTY = ", ".join(map(str, MATRIX["faulty"]))


@with_settings(
    execution=False, steps=MATRIX["steps"], eval_every="steps", trim="faulty, or the most that a rule tolerates"
)
def matrix(
    file: Path | None = FILE,
    rule: list[str] | None = option("A rule, or all; repeat for more.", ", ".join(MATRIX["rule"])),
    fault: list[str] | None = option("A fault, or all; repeat for more.", "all"),
    faulty: list[int] | None = option("Number of workers to make faulty (q); repeat for more.", FAULTY),
    seeds: int | None = option("Seeds per cell, starting at --seed.", "1"),
    processes: int | None = option("Cells to train in parallel.", "one per core"),
    resume: Path | None = option("Resume the matrix in this folder: train the cells that are missing or failed."),
    out_folder: Path | None = OUT,
    as_json: bool = JSON,
    *,
    settings: dict[str, Any],
) -> None:
    """Train every rule against every fault, and show which rule survives which fault.

    Each rule is set to tolerate as many faulty workers as it can. The first row is the mean of the good workers.
    """
    own = {"rule": rule, "fault": fault, "faulty": faulty, "seeds": seeds}
    settings = {**settings, **{name: value for name, value in own.items() if value not in (None, [])}}
    if resume is not None:
        file = settings_to_resume(resume, MATRIX_FILE, "matrix", "matrix", file or out_folder or settings)
    settings = without_execution({**read_toml(file), **settings})
    check_names(settings, also=("all",))
    everything = {**MATRIX, **settings}
    shared, numbers = {name: everything[name] for name in everything.keys() - own}, everything["faulty"]
    for number in numbers if isinstance(numbers, list | tuple) else [numbers]:
        check_values({**shared, "faulty": number})
    folder = resume or new_folder(out_folder, "matrix")
    from zeno.cli.progress import TrainingProgress, command_to_resume
    from zeno.cli.results import show_matrix
    from zeno.studies import matrix as matrices

    planned, outcomes = matrices.plan(settings), matrices.outcomes_in(folder)
    with TrainingProgress({"matrix": planned.jobs()}, outcomes.read(), command_to_resume(folder, "matrix")) as progress:
        matrices.run(planned, folder, processes, progress.on_record)
    results = outcomes.read()
    if outcomes.path.exists():
        show_matrix(planned, matrices.grids(planned, results), folder, as_json)
    progress.finish(results)


def reproduce(
    figure: list[str] | None = typer.Argument(
        None,
        help="Figures of the paper, such as label_flip, or one panel: label_flip/q12. zenopp: those of Zeno++.",
        show_default="all",
    ),
    scale: str | None = option(
        "paper (full CNN, 200 epochs, 10 repeats), small (a quarter as wide, 10 epochs), long (as wide as small, "
        "16x16 pixels, 200 epochs) or smoke (seconds).",
        "small",
    ),
    data: str | None = option("Folder with the files of cifar10.", "where `zeno data` puts them"),
    model: str | None = option("Network, if not the scale's."),
    epochs: int | None = option("Epochs, if not the scale's."),
    repeats: int | None = option("Repeats of every run, if not the scale's."),
    seed: int | None = option("Seed of the first repeat.", "0"),
    precision: str | None = option(
        "Precision of the gradients: float32, or bf16 on processors that support it.", "float32"
    ),
    device: str = typer.Option("cpu", help="Device to compute on, such as cuda."),
    processes: int | None = option("Runs to train in parallel.", "one per core; one on cuda"),
    resume: Path | None = option("Resume in this folder, at its scale: train the runs that are missing."),
    out_folder: Path | None = OUT,
    as_json: bool = JSON,
) -> None:
    """Run the paper's experiments on its data, and check each of its claims.

    Needs CIFAR-10 (`zeno data cifar10`), except at the scale smoke, which checks no claim. Finished runs are kept,
    also after Ctrl-C.
    """
    given = {"model": model, "epochs": epochs, "repeats": repeats, "repeats_of_hard": repeats, "seed": seed}
    given |= {"precision": precision}
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if resume is not None:
        settings_to_resume(resume, SCALE_FILE, "reproduction", "reproduce", out_folder or scale or changed)
    chosen = scale_of(resume) if resume else replace(find("scale", scale or "small", SCALES), **changed)
    folder = resume or new_folder(out_folder, f"reproduce-{chosen.name}")
    from zeno.cli.progress import TrainingProgress, command_to_resume
    from zeno.studies.reproduction import pages, zenopp
    from zeno.studies.reproduction import reproduce as reproduction
    from zeno.studies.reproduction.claims import FIRST
    from zeno.studies.reproduction.figures import chosen_of
    from zeno.studies.sweep import finished

    asked = figure[0].partition("/")[0] if figure else chosen.paper
    paper = zenopp.PAPER if asked == zenopp.NAME else FIRST
    chosen = replace(chosen, data=data, paper=paper.name)
    to_draw = chosen_of({one.name: one for one in paper.figures(chosen)}, figure or ())
    outcomes = reproduction.outcomes_in(folder)
    bars = {"reproduction": reproduction.jobs_of(to_draw, folder, device)}
    again = " ".join([command_to_resume(folder, "reproduce"), *(figure or ()), *(["--data", data] if data else [])])
    with TrainingProgress(bars, outcomes.read(), again) as progress:
        reproduction.run(chosen, to_draw, folder, device, processes, progress.on_record)
    results = outcomes.read()
    if finished(results):
        found, summary = pages.write(chosen, finished(results), folder, paper)
        if as_json:
            print(json.dumps(summary, indent=2))
        else:
            out.print(pages.claims_table(found) if chosen.checks_claims else pages.count(chosen, found))
            print(f"{pages.SUMMARY_FILE}, figures and curves are in {folder}")
    progress.finish(results)
