"""How well the scores of one step separate good candidates from flipped ones, on CIFAR-10.

    python -m benchmarks.score_separation [--data FOLDER] [--dropout 0.25] [--steps 30]

Trains small_cnn for some steps on batches of which a share is flipped. At every third step, draws 8 good and 12 flipped
candidates. Prints the probability that a good one scores above a flipped one (AUC; 0.5: no separation) for scores on
4, 32 and 128 samples, normalised with the running statistics of x or with the statistics of the samples.
"""

import argparse
from collections import defaultdict
from pathlib import Path

import torch

from zeno.problem import tasks
from zeno.problem.dataset import Batch, draw, generator
from zeno.problem.problem import Problem
from zeno.rules.linalg.passes import squared_norms

GOOD, FLIPPED, BATCH, LR, RHO = 8, 12, 100, 0.1, 5e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--dropout", type=float, default=0.25)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    task = tasks.with_model(tasks.load_task("cifar10", options.data), f"small_cnn(dropout={options.dropout})")

    print(f"dropout {options.dropout}, steps 0 to {options.steps}")
    for flipped_of_8 in (0, 4):
        separations = measure(task, flipped_of_8, options.steps)
        for (statistics, size), values in separations.items():
            print(
                f"{flipped_of_8} of 8 batches flipped, statistics of {statistics:11s}, n_r = {size:3d}: "
                f"AUC {sum(values) / len(values):.2f}, first {values[0]:.2f}, last {values[-1]:.2f}"
            )


def measure(task: tasks.Task, flipped_of_8: int, steps: int) -> dict[tuple[str, int], list[float]]:
    torch.manual_seed(0)
    problem = Problem(task.model())
    x = problem.flat.clone()
    everything = torch.arange(len(task.train))

    def batch(role: str, worker: int, step: int, size: int = BATCH, flip: bool = False) -> Batch:
        drawn = task.train.batch(draw(everything, size, generator(0, role, worker, step)))
        return Batch(drawn.inputs, 9 - drawn.targets) if flip else drawn

    separations: dict[tuple[str, int], list[float]] = defaultdict(list)
    for step in range(steps + 1):
        if step % 3 == 0:
            candidates = torch.stack(
                [
                    problem.gradient(x, batch("candidate", i, step, flip=i >= GOOD), seed=1000 * step + i)
                    for i in range(GOOD + FLIPPED)
                ]
            )
            penalty = RHO * squared_norms(candidates)
            problem.refresh(x, batch("statistics", 0, step, 256).inputs)
            for size in (4, 32, 128):
                samples = batch("score", 0, step, size)
                for statistics, own in (("x", False), ("the samples", True)):
                    scores = problem.descent(x, candidates, LR, samples, own_statistics=own) - penalty
                    above = (scores[:GOOD, None] > scores[None, GOOD:]).double().mean()
                    separations[statistics, size].append(float(above))
        gradients = [
            problem.gradient(x, batch("train", i, step, flip=i < flipped_of_8), seed=1000 * step + 500 + i)
            for i in range(8)
        ]
        x = x - LR * torch.stack(gradients).mean(dim=0)
    return separations


if __name__ == "__main__":
    main()
