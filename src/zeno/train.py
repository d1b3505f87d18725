"""From a Run to its records: the one loop."""

from collections.abc import Callable, Sequence
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from zeno import tasks
from zeno.cluster import Cluster, Faulty, LocalCluster
from zeno.data import Dataset, generator, hold_out
from zeno.problem import Problem
from zeno.records import MODEL_FILE, Journal, Record, finite
from zeno.run import Run
from zeno.server import Server, Step
from zeno.tasks import Task
from zeno.worker import Worker

EVAL_BATCH_SIZE = 500


def train(
    run: Run, folder: str | Path | None = None, on_record: Callable[[Record], None] | None = None
) -> list[Record]:
    """Trains, and returns one record a step.

    With a folder, the settings, the records as they come and the trained model are written there, also when the
    run is interrupted. `on_record` is called after every step.
    """
    folder = None if folder is None else Path(folder)
    with torch.random.fork_rng(devices=[]):  # a task of the user's own may draw, and models always do
        torch.manual_seed(int(generator(run.seed, "task").integers(2**63)))
        task = run.task if isinstance(run.task, Task) else tasks.load(run.task, Path(run.data) if run.data else None)
        task = tasks.with_model(task, run.model) if run.model else task
        torch.manual_seed(int(generator(run.seed, "initialisation").integers(2**63)))
        problem = Problem(task.model(), task.loss)
    params = nn.Parameter(problem.flat.clone())  # [d]
    server_samples, worker_samples = hold_out(len(task.train), run.server_data, generator(run.seed, "hold out"))
    train_eval = _some(len(task.train), run.eval_samples, run.seed)
    test_eval = _some(len(task.test), run.eval_samples, run.seed)
    who = run.faulty_workers()

    with make_cluster(run, task, problem, worker_samples) as cluster, Journal(folder, run.to_toml()) as journal:
        server = Server(
            problem, run.rule, cluster, task.train, server_samples, *run.make_optimizer(params), seed=run.seed
        )
        try:
            for step in range(run.steps):
                outcome = server.step(step)
                loss, accuracy = None, None
                evaluated = (step + 1) % run.eval_every == 0 or step + 1 == run.steps
                if evaluated:
                    loss = evaluate(problem.loss, params.detach(), task.train, train_eval)
                    if task.test.classes is not None:
                        accuracy = evaluate(problem.accuracy, params.detach(), task.test, test_eval)
                record = _record(step, outcome, who(step), evaluated, loss, accuracy)
                journal.append(record)
                if on_record is not None:
                    on_record(record)
        finally:
            if folder is not None:
                problem.load(params.detach())
                weights = {name: value.contiguous().clone() for name, value in problem.model.state_dict().items()}
                safetensors.torch.save_file(weights, folder / MODEL_FILE)
        return journal.records


def make_cluster(run: Run, task: Task, problem: Problem, samples: Tensor) -> Cluster:
    """The workers of a run, faulty ones included, sharing these samples of the training set."""
    shards = run.split(task.train.targets[samples], run.workers, generator(run.seed, "split"))
    if min(len(shard) for shard in shards) == 0:
        raise ValueError(
            f"{run.split} leaves a worker without samples: {len(samples)} of them for {run.workers} workers. "
            "Use fewer workers, or the split iid."
        )
    cluster = LocalCluster(
        [
            Worker(i, problem, task.train, samples[shard], run.batch_size, run.seed, run.precision)
            for i, shard in enumerate(shards)
        ]
    )
    return Faulty(cluster, run.fault, run.faulty_workers(), run.seed) if run.faulty else cluster


def evaluate(measure: Callable[..., float], params: Tensor, dataset: Dataset, indices: Tensor) -> float:
    """The mean over these samples of what `measure(params, batch)` returns for a batch."""
    parts = indices.split(EVAL_BATCH_SIZE)
    return sum([measure(params, dataset.batch(part)) * len(part) for part in parts]) / len(indices)


def _some(num_samples: int, most: int, seed: int) -> Tensor:
    """All samples, or `most` of them, the same at every evaluation."""
    if num_samples <= most:
        return torch.arange(num_samples)
    return torch.from_numpy(generator(seed, "evaluation").permutation(num_samples)[:most])


def _record(
    step: int, outcome: Step, faulty: Sequence[int], evaluated: bool, loss: float | None, accuracy: float | None
) -> Record:
    aggregate = outcome.aggregate
    scored = aggregate is not None and aggregate.scores is not None
    return Record(
        step=step,
        lr=outcome.lr,
        kept=aggregate.kept.tolist() if aggregate else None,
        scores=finite(aggregate.scores.tolist()) if scored else None,  # type: ignore[union-attr]
        errors=outcome.errors,
        skipped=outcome.skipped,
        faulty=list(faulty),
        train_loss=finite([loss])[0] if loss is not None else None,
        accuracy=accuracy,
        evaluated=evaluated,
        seconds=outcome.seconds,
    )
