"""From a Run to its records: the one loop."""

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from zeno.faults import Faulty
from zeno.faults.faulty_cluster import poisoned
from zeno.problem import Problem, tasks
from zeno.problem.dataset import Dataset, generator, hold_out
from zeno.problem.tasks import Task
from zeno.records.folder import CHECKPOINTS, MODEL_FILE, RUN_FILE, Journal, Record, finite, read_whole
from zeno.records.ledger import ledger_of
from zeno.report.telemetry import Metrics, TensorBoard
from zeno.rules import bears
from zeno.server.core import record_of
from zeno.server.engine import Engine
from zeno.server.scorers import Scorer
from zeno.training import checkpoint
from zeno.training.execution import Setup
from zeno.training.interrupt import Stop, Stopped
from zeno.training.run import Run
from zeno.workers import NOBODY, Cluster, LocalCluster, Remembering
from zeno.workers.worker import Worker

log = logging.getLogger("zeno")

EVAL_BATCH_SIZE = 500


def train(
    run: Run,
    folder: str | Path | None = None,
    on_record: Callable[[Record], None] | None = None,
    setup: Setup = Setup(),
    resume: bool = False,
) -> list[Record]:
    """Trains, and returns one record a step.

    With a folder, the settings, the records as they come, checkpoints and the trained model are written there, also
    when the run is interrupted: Ctrl-C and SIGTERM wait for the end of the step and raise `KeyboardInterrupt` then.
    With `resume` a run that has a folder goes on from its newest checkpoint, and ends with the records of one that was
    never stopped. `on_record` is called after every step.
    """
    folder = None if folder is None else Path(folder)
    earlier, state = _saved(run, folder) if resume else (None, None)
    device = torch.device(setup.device)
    generators = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=generators):  # a task of the user's own may draw, and models always do
        torch.manual_seed(int(generator(run.seed, "task").integers(2**63)))
        task = run.task if isinstance(run.task, Task) else tasks.load(run.task, Path(run.data) if run.data else None)
        task = tasks.with_model(task, run.model) if run.model else task
        task = tasks.on_device(task, device)
        torch.manual_seed(int(generator(run.seed, "initialisation").integers(2**63)))
        problem = Problem(task.model(), task.loss)
    params = nn.Parameter(problem.flat.clone())  # [d]
    server_samples, worker_samples = hold_out(len(task.train), run.server_data, generator(run.seed, "hold out"))
    train_eval = _some(len(task.train), run.eval_samples, run.seed)
    test_eval = _some(len(task.test), run.eval_samples, run.seed)
    who = run.faulty_workers()

    with ExitStack() as stack:
        cluster = stack.enter_context(make_cluster(run, task, problem, worker_samples, setup))
        scorer = stack.enter_context(closing(_make_scorers(problem, setup))) if setup.scorers else None
        optimizer, schedule = run.make_optimizer(params)
        engine = stack.enter_context(
            closing(
                Engine(
                    problem, run.rule, cluster, task.train, server_samples, optimizer, schedule, run.seed, scorer=scorer
                )
            )
        )
        if isinstance(cluster, Faulty):
            cluster.trial = engine.trial  # some faults know the rule
        if state is not None:
            engine.load_state(state)
            if state.get("cluster") is not None:
                cluster.load_state(state["cluster"])
        journal = stack.enter_context(Journal(folder, run.to_toml() + setup.to_toml(), earlier))
        watchers = _watchers(run, setup, folder, journal.records, stack)
        if on_record is not None:
            watchers.append(on_record)
        ledger = ledger_of(journal.records, run.workers) if run.quarantine else None
        whole = True  # whether the engine is between two steps, and its state one to go on from

        def save() -> None:
            if folder is not None:
                journal.sync()
                state_now = {**engine.state_to_save(), "cluster": cluster.state_to_save()}
                checkpoint.save(folder / CHECKPOINTS, len(journal.records), state_now, keep=setup.checkpoints)

        stop = stack.enter_context(Stop())
        try:
            for step in range(len(journal.records), run.steps):
                whole = False
                outcome = engine.step(step, skip=ledger.resting(step, most_resting(run)) if ledger else NOBODY)
                loss, accuracy = None, None
                evaluated = (step + 1) % run.eval_every == 0 or step + 1 == run.steps
                if evaluated:
                    loss = evaluate(problem.loss, params.detach(), task.train, train_eval)
                    if task.test.classes is not None:
                        accuracy = evaluate(problem.accuracy, params.detach(), task.test, test_eval)
                record = record_of(
                    step,
                    outcome.lr,
                    outcome.aggregate,
                    outcome.skipped,
                    outcome.errors,
                    quarantined=outcome.unasked,
                    late=outcome.late,
                    faulty=sorted(who(step)),
                    train_loss=None if loss is None else finite([loss])[0],
                    accuracy=accuracy,
                    evaluated=evaluated,
                    seconds=outcome.seconds,
                    workers=cluster.status._asdict(),
                )
                journal.append(record)
                if ledger is not None:
                    ledger.add(record)
                whole = True
                if (step + 1) % setup.checkpoint_every == 0 and step + 1 < run.steps:
                    save()
                for watcher in watchers:
                    watcher(record)
                if stop.asked is not None:
                    raise Stopped(stop.asked)
        finally:
            engine.close()  # nobody else may write to the model while it is saved
            if whole:
                save()
            if folder is not None:
                _save_model(problem, params.detach(), folder / MODEL_FILE)
        return journal.records


def _watchers(
    run: Run, setup: Setup, folder: Path | None, earlier: Sequence[Record], stack: ExitStack
) -> list[Callable[[Record], None]]:
    """What is told of every record, besides the folder; closed with the stack."""
    found: list[Callable[[Record], None]] = []
    if setup.tensorboard:
        if folder is None:
            raise ValueError("TensorBoard needs a run folder to write to. Found none. Name one, or leave it out.")
        found.append(stack.enter_context(TensorBoard(folder, run.workers, list(earlier))))
    if setup.metrics_port is not None:
        metrics = stack.enter_context(Metrics(setup.metrics_port, run.workers, list(earlier)))
        log.info("metrics are at http://127.0.0.1:%d/metrics", metrics.port)
        found.append(metrics)
    return found


def most_resting(run: Run) -> int:
    """How many workers may be in quarantine: as many as the rule was told to bear, or else a minority."""
    told = bears(run.rule)
    return (run.workers - 1) // 2 if told is None else told


def _saved(run: Run, folder: Path | None) -> tuple[list[Record], dict[str, Any] | None]:
    """The records that a run goes on after, and the state to go on from; none of either to start from the beginning."""
    if folder is None or not (folder / RUN_FILE).is_file():
        raise ValueError(f"There is no run to resume in {folder}. Name a folder that `zeno train` has written.")
    there, here = (_by_name(text) for text in ((folder / RUN_FILE).read_text(encoding="utf-8"), run.to_toml()))
    there = {**_by_name(Run().to_toml()), **there}  # which may be of a version with fewer settings
    for name in (f.name for f in fields(run) if f.name not in ("steps", "data")):  # the data may have moved
        of_this_process = " at 0x" in here.get(name, "")  # an object of the user's own that has no text
        if there.get(name) != here.get(name) and not of_this_process:
            other, this = (settings.get(name, f"no {name}") for settings in (there, here))
            raise ValueError(f"The run in {folder} is another one: {other} there, {this} here.")
    records = read_whole(folder)
    found = checkpoint.newest(folder / CHECKPOINTS, most=len(records))
    if found is None:
        log.warning("there is no checkpoint in %s to go on from: the run starts from the beginning", folder)
        return [], None
    step, state = found
    return records[:step], state


def _by_name(toml: str) -> dict[str, str]:
    """The lines of a run's settings."""
    return {line.split(" = ")[0]: line for line in toml.splitlines()}


def _save_model(problem: Problem, params: Tensor, path: Path) -> None:
    problem.load(params)
    weights = {name: value.cpu().contiguous().clone() for name, value in problem.model.state_dict().items()}
    new = path.with_name(f".{path.name}.new")
    safetensors.torch.save_file(weights, new)
    os.replace(new, path)


def _make_scorers(problem: Problem, setup: Setup) -> Scorer:
    from zeno.workers.ray import RayScorers

    return RayScorers(problem, setup.scorers)


def make_cluster(run: Run, task: Task, problem: Problem, samples: Tensor, setup: Setup = Setup()) -> Cluster:
    """The workers of a run, faulty ones included, sharing these samples of the training set."""
    shards = run.split(task.train.targets[samples].cpu(), run.workers, generator(run.seed, "split"))
    if min(len(shard) for shard in shards) == 0:
        raise ValueError(
            f"{run.split} leaves a worker without samples: {len(samples)} of them for {run.workers} workers. "
            "Use fewer workers, or the split iid."
        )
    lrs = run.lrs() if run.local_steps > 1 else ()
    workers = [
        Worker(i, problem, task.train, samples[shard], run.batch_size, run.seed, run.precision, run.local_steps, lrs)
        for i, shard in enumerate(shards)
    ]
    if run.faulty:
        workers = poisoned(workers, run.faulty_workers())
    cluster: Cluster
    if setup.cluster == "local":
        cluster = LocalCluster(workers)
    else:
        from zeno.workers.ray import RayCluster  # not before it is asked for: Ray is an extra

        _check_travels(problem)
        cluster = RayCluster(
            workers,
            workers_per_actor=setup.workers_per_actor,
            deadline=setup.deadline,
            patience=setup.patience,
            address=setup.address,
            cpus_per_actor=setup.cpus_per_actor,
        )
    if run.worker_momentum:
        cluster = Remembering(cluster, run.worker_momentum)
    return Faulty(cluster, run.faulty_workers(), run.seed) if run.faulty else cluster


def _check_travels(problem: Problem) -> None:
    """Refuses at once what a Ray cluster could not send."""
    if problem.flat.dtype != torch.float32:
        raise ValueError(f"A Ray cluster sends float32 and nothing else. Found parameters of {problem.flat.dtype}.")
    for name, buffer in problem.buffers.items():
        try:
            buffer.cpu().numpy()
        except TypeError as error:
            raise ValueError(f"A Ray cluster cannot send the buffer {name} of the model: {error}.") from None


def evaluate(measure: Callable[..., float], params: Tensor, dataset: Dataset, indices: Tensor) -> float:
    """The mean over these samples of what `measure(params, batch)` returns for a batch."""
    parts = indices.split(EVAL_BATCH_SIZE)
    return sum([measure(params, dataset.batch(part)) * len(part) for part in parts]) / len(indices)


def _some(num_samples: int, most: int, seed: int) -> Tensor:
    """All samples, or `most` of them, the same at every evaluation."""
    if num_samples <= most:
        return torch.arange(num_samples)
    return torch.from_numpy(generator(seed, "evaluation").permutation(num_samples)[:most])
