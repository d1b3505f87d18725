"""Whether gradients computed in bf16 change the ranking of candidates by Zeno, on CIFAR-10.

    python -m benchmarks.bf16_ranking [--data FOLDER] [--steps 20] [--every 5] [--samples 4]

Trains small_cnn with the mean of the good workers. Every few steps, computes the same 20 candidates (12 with flipped
labels) in float32 and in bf16, and scores them on the same samples. Prints the rank correlation of the two sets of
scores and, for comparison, that of float32 scores on two different sets of samples.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from zeno.problem import tasks
from zeno.problem.dataset import Batch, draw, generator
from zeno.problem.problem import Problem

WORKERS, FLIPPED, BATCH, LR, RHO = 20, 12, 100, 0.1, 5e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--samples", type=int, default=4)
    options = parser.parse_args()
    task = tasks.with_model(tasks.load_task("cifar10", options.data), "small_cnn")
    torch.manual_seed(0)
    problem = Problem(task.model(), task.loss)
    params, everyone = problem.flat.clone(), torch.arange(len(task.train))

    def candidates(step: int, precision: str, workers: range) -> Tensor:  # [m, d]
        found = []
        for worker in workers:
            rng = generator(0, "batch", worker, step)
            batch = task.train.batch(draw(everyone, BATCH, rng))
            targets = 9 - batch.targets if worker < FLIPPED else batch.targets
            found.append(problem.gradient(params, Batch(batch.inputs, targets), worker, precision))
        return torch.stack(found)

    def scores(step: int, sent: Tensor, number: int) -> Tensor:  # [m]
        own = task.train.batch(draw(everyone, options.samples, generator(0, f"samples {number}", 0, step)))
        return problem.descent(params, sent, LR, own) - RHO * sent.double().square().sum(dim=1)

    print(f"scores on {options.samples} samples: rank correlation over {WORKERS} candidates")
    for step in range(options.steps):
        if step % options.every:
            good = candidates(step, "float32", range(FLIPPED, WORKERS))
            params = params - LR * good.mean(dim=0)
            continue
        exact, low = (candidates(step, precision, range(WORKERS)) for precision in ("float32", "bf16"))
        problem.refresh(params, task.train.batch(draw(everyone, 256, generator(0, "statistics", 0, step))).inputs)
        first, other, rounded = scores(step, exact, 0), scores(step, exact, 1), scores(step, low, 0)
        print(
            f"step {step:3d}: bf16 {_rank_correlation(first, rounded):.3f}, other samples "
            f"{_rank_correlation(first, other):.3f}; distance of candidates, bf16 to float32: "
            f"{float((low - exact).norm() / exact.norm()):.3f} of their size",
            flush=True,
        )
        params = params - LR * exact[FLIPPED:].mean(dim=0)


def _rank_correlation(one: Tensor, other: Tensor) -> float:
    ranks = torch.stack([one.argsort().argsort(), other.argsort().argsort()]).double()
    return float(torch.corrcoef(ranks)[0, 1])


if __name__ == "__main__":
    main()
