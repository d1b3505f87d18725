"""The training loop: from a Run to its records."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from zeno.problem.dataset import Dataset, generator
from zeno.problem.problem import Problem
from zeno.problem.tasks import Task
from zeno.records.files import read_file, write_atomically
from zeno.records.folder import CHECKPOINTS, MODEL_FILE, RUN_FILE, Journal, read
from zeno.records.ledger import Ledger
from zeno.records.names import is_name
from zeno.records.record import Record, finite
from zeno.records.row import Row, call
from zeno.report.prometheus import Metrics
from zeno.report.tensorboard import TensorBoard
from zeno.server.core import most_resting
from zeno.server.engine import Engine
from zeno.server.recorder import Watcher
from zeno.training import checkpoint
from zeno.training.build import make_engine, make_problem
from zeno.training.dry_run import dry_run, warn_of_rho
from zeno.training.execution import ExecutionSettings
from zeno.training.interrupt import Interrupt
from zeno.training.run import Run
from zeno.training.settings import values_in
from zeno.workers.cluster import NOBODY

EVAL_BATCH_SIZE = 500

log = logging.getLogger("zeno")


def train(
    run: Run,
    folder: str | Path | None = None,
    on_record: Callable[[Record], None] | None = None,
    execution: ExecutionSettings = ExecutionSettings(),
    resume: bool = False,
    on_suspect: Callable[[Row], object] | None = None,
) -> list[Record]:
    """Trains, and returns one record per step.

    With a folder, the settings, the records, checkpoints and the trained model are written there, also if the run is
    interrupted: Ctrl-C and SIGTERM take effect at the end of the step and raise `KeyboardInterrupt` then. With
    `resume`, the run in the folder continues from its newest checkpoint, and ends with the records of a run that was
    never interrupted. `on_record` is called after every step, and `on_suspect` with the ledger's row of every worker
    that becomes suspect.
    """
    dry_run(run)
    warn_of_rho(run)
    folder = None if folder is None else Path(folder)
    if resume and execution.replay is not None:
        raise ValueError("A replay begins with the first step. Found resume=True. Leave it out.")
    earlier, state = _resume_point(run, folder) if resume else (None, None)
    task, problem = make_problem(run, torch.device(execution.device))
    indices = evaluation_indices(len(task.train), run), evaluation_indices(len(task.test), run)
    faulty_workers = run.faulty_workers()
    with ExitStack() as stack:
        engine = make_engine(run, task, problem, execution, stack)
        params = engine.params.detach()
        if state is not None:
            _load_state(engine, state)
        journal = stack.enter_context(Journal(folder, run.to_toml() + execution.to_toml(), earlier))
        ledger = Ledger(run.workers, failure_rate=run.failure_rate)
        watchers = _watchers(execution, folder, len(journal.records), stack)
        if watchers or run.quarantine or on_suspect is not None:
            watchers = [lambda record, ledger: ledger.add(record), *watchers]
        for record in journal.records:
            for watcher in watchers:
                watcher(record, ledger)
        most = most_resting(run.rule, run.workers)  # in quarantine
        between_steps = True  # only then is the state of the engine one to continue from
        machines: dict[int, str] = {}  # on the records so far
        interrupt = stack.enter_context(Interrupt())
        try:
            for step in range(len(journal.records), run.steps):
                between_steps = False
                outcome = engine.step(step, ledger.resting(step, most) if run.quarantine else NOBODY)
                measured: dict[str, Any] = {}
                if (step + 1) % run.eval_every == 0 or step + 1 == run.steps:
                    engine.refresh_statistics()
                    measured = measure(task, problem, params, *indices)
                new_machines = _new_machines(engine.cluster.machines, machines)
                machines |= new_machines
                faulty = faulty_at(faulty_workers, step, outcome.arrivals or ())
                status = engine.cluster.status._asdict()
                record = outcome.record(faulty=faulty, workers=status, machines=new_machines, **measured)
                journal.append(record)
                between_steps = True
                if (step + 1) % execution.checkpoint_every == 0 and step + 1 < run.steps:
                    _save_checkpoint(engine, journal, folder, execution.checkpoints)
                _pass_on(record, ledger, watchers, on_record, on_suspect)
                interrupt.check()
        finally:
            engine.close()  # ends the thread that tries candidates on the model, before the model is saved
            if between_steps:
                _save_checkpoint(engine, journal, folder, execution.checkpoints)
            if folder is not None:
                engine.refresh_statistics()
                _save_model(problem, params, folder / MODEL_FILE)
        return journal.records


def faulty_at(
    faulty_workers: Callable[[int], Mapping[int, object]], step: int, arrivals: Sequence[Sequence[int]]
) -> list[int]:
    """The workers with a fault at this step; those that arrived asynchronously, when they were asked."""
    versions = {worker: version for worker, version in arrivals}  # noqa: C416
    now = {worker for worker in faulty_workers(step) if worker not in versions}
    return sorted(now | {worker for worker, version in versions.items() if worker in faulty_workers(version)})


def _new_machines(now: Mapping[int, str], before: Mapping[int, str]) -> dict[int, str]:
    """The machines of the workers that run on another one than before."""
    return {i: name for i, name in now.items() if before.get(i) != name and is_name(name)}


def _watchers(execution: ExecutionSettings, folder: Path | None, first_step: int, stack: ExitStack) -> list[Watcher]:
    """What receives every record besides the folder and the ledger; closed with the stack."""
    found: list[Watcher] = []
    if execution.tensorboard:
        if folder is None:
            raise ValueError("TensorBoard needs a run folder. Found none. Pass a folder, or leave out tensorboard.")
        found.append(stack.enter_context(TensorBoard(folder, first_step)))
    if execution.metrics_port is not None:
        metrics = stack.enter_context(Metrics(execution.metrics_port))
        log.info("metrics are at http://127.0.0.1:%d/metrics", metrics.port)
        found.append(metrics)
    return found


def _resume_point(run: Run, folder: Path | None) -> tuple[list[Record], dict[str, Any] | None]:
    """The records and the state that a run continues from; no records and None to start from the beginning."""
    if folder is None or not (folder / RUN_FILE).is_file():
        raise ValueError(f"There is no run to resume in {folder}. Name a folder that `zeno train` has written.")
    there, here = values_in(read_file(folder / RUN_FILE).decode()), values_in(run.to_toml())
    for name in (f.name for f in fields(run) if f.name not in ("steps", "data")):  # the data may have moved
        if there.get(name) != here.get(name):
            other, this = (f"{name} = {values[name]!r}" if name in values else f"no {name}" for values in (there, here))
            raise ValueError(
                f"The run in {folder} has other settings: {other} there, {this} here. Resume it with its own, or name "
                "another folder."
            )
    records = read(folder)
    if run.steps < len(records):
        raise ValueError(
            f"The run in {folder} has made {len(records)} steps, and cannot be resumed with fewer. "
            f"Found steps={run.steps}."
        )
    found = checkpoint.newest(folder / CHECKPOINTS, most=len(records))
    if found is None:
        log.warning("there is no checkpoint in %s to continue from: the run starts from the beginning", folder)
        return [], None
    step, state = found
    return records[:step], state


def _load_state(engine: Engine, state: Mapping[str, Any]) -> None:
    """Continues from the state of a checkpoint."""
    engine.load_state(state)
    if state.get("cluster") is not None:
        engine.cluster.load_state(state["cluster"])


def _save_checkpoint(engine: Engine, journal: Journal, folder: Path | None, keep: int) -> None:
    """Writes the state between two steps, if there is a folder; the records are on the disk before it."""
    if folder is not None:
        journal.sync()
        state = {**engine.state_to_save(), "cluster": engine.cluster.state_to_save()}
        checkpoint.save(folder / CHECKPOINTS, len(journal.records), state, keep=keep)


def _pass_on(
    record: Record,
    ledger: Ledger,
    watchers: Sequence[Watcher],
    on_record: Callable[[Record], None] | None,
    on_suspect: Callable[[Row], object] | None,
) -> None:
    """Passes the record of a step to the watchers, of which one may be the ledger, and to the user's functions."""
    for watcher in watchers:
        watcher(record, ledger)
    if on_record is not None:
        on_record(record)
    if on_suspect is not None:
        for row in ledger.rows:
            if row.verdict == "suspect" and row.since == record.step:
                call(on_suspect, row)


def _save_model(problem: Problem, params: Tensor, path: Path) -> None:
    problem.load(params)
    weights = {name: value.cpu().contiguous().clone() for name, value in problem.model.state_dict().items()}
    write_atomically(path, safetensors.torch.save(weights))


def measure(task: Task, problem: Problem, params: Tensor, train: Tensor, test: Tensor) -> dict[str, Any]:
    """What a record holds of the model after a step, on these samples of the training set and of the test set."""
    loss = evaluate(problem.loss, params, task.train, train)
    measured: dict[str, Any] = {"evaluated": True, "train_loss": finite([loss])[0]}
    if task.test.classes is not None:
        measured["accuracy"] = evaluate(problem.accuracy, params, task.test, test)
    return measured


def evaluate(of: Callable[..., float], params: Tensor, dataset: Dataset, indices: Tensor) -> float:
    """The mean of `of(params, batch)` over these samples."""
    parts = indices.split(EVAL_BATCH_SIZE)
    return sum([of(params, dataset.batch(part)) * len(part) for part in parts]) / len(indices)


def evaluation_indices(num_samples: int, run: Run) -> Tensor:
    """The samples to evaluate on: all, or `eval_samples` of them, the same at every evaluation."""
    if num_samples <= run.eval_samples:
        return torch.arange(num_samples)
    return torch.from_numpy(generator(run.seed, "evaluation").permutation(num_samples)[: run.eval_samples])
