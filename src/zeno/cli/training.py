"""The commands that train: train and compare."""

import re
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from zeno.cli.catalogue import check_names, constant
from zeno.cli.options import FILE, JSON, OUT, new_folder, option, read_toml, settings_to_resume, with_settings
from zeno.problem.registry import parse, split
from zeno.records import toml
from zeno.records.folder import COMPARE_FILE, RUN_FILE, Reader, lines_in
from zeno.training.execution import ONLY_RAY, ExecutionSettings, execution_from, without_execution
from zeno.training.run import Run, check_values

DEFAULTS = constant("studies.compare", "DEFAULTS")
RULES = constant("studies.compare", "RULES")
MAY_CHANGE = ("replay", "steps", "data", "device", "tensorboard", "metrics_port", "checkpoint_every", "checkpoints")


@with_settings()
def train(
    file: Path | None = FILE,
    resume: Path | None = option("Resume the run in this folder from its newest checkpoint."),
    on_suspect: str | None = option(
        "Shell command to run for each new suspect; it receives ZENO_WORKER, ZENO_MACHINE (if there are several), "
        "ZENO_REASON, ZENO_STEP and ZENO_RUN.",
        panel="Monitoring",
    ),
    out_folder: Path | None = OUT,
    as_json: bool = JSON,
    *,
    settings: dict[str, Any],
) -> None:
    """Train once and write a run folder: settings, one record per step, checkpoints, figures, the model."""
    if resume is not None:
        file = settings_to_resume(resume, RUN_FILE, "run", "train", file or out_folder)
    if settings.get("replay") is not None:
        file, settings = _to_replay(Path(settings["replay"]), file, settings)
    from_file = read_toml(file)
    if settings.get("cluster") == "local":  # settings of a Ray cluster in the file do not apply
        from_file = {name: value for name, value in from_file.items() if name not in ONLY_RAY}
    everything = {**from_file, **settings}
    if resume is not None and str(everything.get("task")).startswith(("<", "Task(")):
        raise ValueError(f"The run in {resume} has a custom task. Resume it in Python, with zeno.train.")
    check_names(everything)
    check_values(without_execution(everything))
    execution = execution_from(everything)
    folder = resume or new_folder(out_folder, "train")
    from zeno.problem.registry import describe
    from zeno.rules import PARTS
    from zeno.training.settings import from_settings

    run = from_settings(without_execution(everything))
    _execute({describe(run.rule, PARTS): run}, execution, folder, as_json, on_suspect=on_suspect)


@with_settings(**DEFAULTS, trim="faulty + 1, or the most that a rule tolerates")
def compare(
    file: Path | None = FILE,
    rule: list[str] | None = option("A rule to compare; repeat for more.", ", ".join(RULES)),
    resume: Path | None = option("Resume the comparison in this folder: train what is missing of its runs."),
    out_folder: Path | None = OUT,
    as_json: bool = JSON,
    *,
    settings: dict[str, Any],
) -> None:
    """Train with several rules on the same batches and faults, and show which ones survive.

    Without arguments: handwritten digits, 20 workers, 12 of them with flipped labels; under a minute.
    """
    if resume is not None:
        file = settings_to_resume(resume, COMPARE_FILE, "comparison", "compare", file or out_folder or rule)
    from_file = read_toml(file)
    from_file.pop("folders", None)
    rules = rule or _rules_of(from_file.pop("rule", None))
    everything = {**from_file, **settings}
    check_names({**everything, "rule": rules})
    check_values({**DEFAULTS, **without_execution(everything)})
    execution = execution_from(everything)
    folder = resume or new_folder(out_folder, "compare")
    from zeno.studies import compare as comparison

    runs = comparison.runs(without_execution(everything), rules)
    _execute(runs, execution, folder, as_json, {**DEFAULTS, **everything, "rule": rules})


def _to_replay(folder: Path, file: Path | None, settings: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """The settings file of a run to replay, and the settings of the replay: in this process, as many steps."""
    others = [name for name in settings if name not in MAY_CHANGE]
    if file is not None or others or not (folder / RUN_FILE).is_file():
        why = f"There is no run in {folder}" if not (file or others) else f"Found {others[0] if others else file}"
        raise ValueError(f"A replay has the settings of its run, in its folder. {why}. Name a run folder alone.")
    steps = sum(1 for _ in Reader().records(lines_in(folder)[0]))
    return folder / RUN_FILE, {"cluster": "local", "steps": max(1, steps), **settings}


def _without_effect_on_time(runs: Iterable[Run]) -> list[str]:
    """The faults of asynchronous runs that change the time of a reply, which they can in a simulation only."""
    from zeno.faults import FAULTS
    from zeno.faults.fault import Fault, parts_of
    from zeno.problem.registry import describe

    faults = [part for run in runs if run.asynchronous and run.faulty for part in parts_of(run.fault)]
    return list(dict.fromkeys(describe(f, FAULTS) for f in faults if type(f).on_delay is not Fault.on_delay))


def _rules_of(found: object) -> list[str]:
    """The rules to compare, by what a file says: a list of them, or one that replaces the default of the same name."""
    if isinstance(found, list):
        return [str(rule) for rule in found]
    own = [] if found is None else [str(found)]
    names = [parse(split(rule)[-1])[0] for rule in own]
    return [rule for rule in RULES if rule not in names] + own


def _execute(
    runs: Mapping[str, Run],
    execution: ExecutionSettings,
    folder: Path,
    as_json: bool,
    comparison: Mapping[str, Any] | None = None,  # its settings, if the runs are compared
    on_suspect: str | None = None,
) -> None:
    """Trains each run in turn, then shows and writes the results, also those up to an interrupt."""
    from zeno.cli.on_suspect import OnSuspect
    from zeno.cli.progress import TrainingProgress, command_to_resume
    from zeno.cli.results import show_runs
    from zeno.records.files import locked, write_atomically
    from zeno.studies.sweep import Job, run_jobs, train_job
    from zeno.training.dry_run import dry_run

    subfolders = {name: re.sub(r"[^\w.]+", "-", name).strip("-") if comparison else "" for name in runs}
    jobs = [Job(name, run, folder / subfolders[name], execution) for name, run in runs.items()]
    for name, run in runs.items():
        dry_run(run, execution)
        tolerated = run.rule.tolerates
        if tolerated is not None and run.faulty > tolerated:
            workers, are = "worker" if tolerated == 1 else "workers", "is" if run.faulty == 1 else "are"
            print(
                f"note: {name} tolerates {tolerated} faulty {workers}, but {run.faulty} {are} faulty", file=sys.stderr
            )
    for fault in _without_effect_on_time(runs.values()) if execution.cluster == "ray" else ():
        print(f"note: a Ray cluster has real delays, so {fault} does not change the time of a reply", file=sys.stderr)
    bars, resume = {job.name: [job] for job in jobs}, command_to_resume(folder, "compare") if comparison else ""
    with ExitStack() as stack:
        if comparison:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder))  # tells `zeno watch` that more runs follow
            settings = toml.dumps({**comparison, "folders": list(subfolders.values())})
            write_atomically(folder / COMPARE_FILE, settings)
        if execution.cluster == "ray":  # one for all runs
            from zeno.workers.ray.session import start_or_join

            stack.enter_context(start_or_join(execution.address))
        progress = stack.enter_context(TrainingProgress(bars, resume=resume))
        caller = OnSuspect(on_suspect, folder) if on_suspect else None
        if caller is not None:
            stack.callback(caller.finish)
        deque(run_jobs(jobs, partial(train_job, on_suspect=caller), on_record=progress.on_record), maxlen=0)
    begun = show_runs(jobs, folder, as_json)
    progress.finish(kept="the records up to here, and the model, are kept" if begun else "before the first step")
