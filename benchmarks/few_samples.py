"""What `zeno.Server` with ZenoAuto reaches with four workers and few trusted samples.

    python -m benchmarks.few_samples [--task mnist] [--data FOLDER] [--samples 100] [--seed 0]

Trains an MLP for 200 steps of 32 samples per worker, with none to four of the four workers faulty. Prints the test
accuracy next to that of the good workers alone, or of the server alone where no worker is good.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import zeno
from zeno.problem.tasks import Task, load_task

WORKERS, BATCH, STEPS, LR, TURNS = 4, 32, 200, 0.1, 50
CASES: dict[str, dict[int, str]] = {  # the faults of the faulty workers
    "none": {},
    "one flips labels": {0: "flip"},
    "one sends -1 times its gradient": {0: "negate"},
    "one sends -10 times its gradient, from step 50 on": {0: "turn"},
    "three flip labels": dict.fromkeys(range(3), "flip"),
    "all three of these": {0: "flip", 1: "negate", 2: "turn"},
    "all four send -1 times their gradient": dict.fromkeys(range(4), "negate"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="mnist")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    task = load_task(options.task, options.data)
    for case, faults in CASES.items():
        good = [worker for worker in range(WORKERS) if worker not in faults]
        ours = accuracy(task, faults, zeno.ZenoAuto(), options.samples, options.seed)
        control = accuracy(task, faults, None if good else zeno.ServerAlone(), options.samples, options.seed)
        print(f"{case}: {ours:.1f} %, {'good workers' if good else 'server'} alone {control:.1f} %", flush=True)


def accuracy(task: Task, faults: Mapping[int, str], rule: zeno.Rule | None, samples: int, seed: int) -> float:
    """After training under a rule, or without one on the mean of the good workers; in percent."""
    torch.manual_seed(seed)
    model, random = task.model(), torch.Generator().manual_seed(seed + 1)
    order = torch.randperm(len(task.train), generator=random)
    trusted, others = TensorDataset(*task.train.batch(order[:samples])), order[samples:]
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    data = DataLoader(trusted, batch_size=64, shuffle=True, generator=random)
    server = zeno.Server(model, F.cross_entropy, optimizer, data, rule or zeno.Mean(least=1))
    for step in range(STEPS):
        sent = [gradient(task, model, others, random, faults.get(worker, ""), step) for worker in range(WORKERS)]
        server.step([None if rule is None and worker in faults else one for worker, one in enumerate(sent)])
    test = task.test.batch(torch.arange(len(task.test)))
    with torch.no_grad():
        right = model.eval()(test.inputs).argmax(dim=1) == test.targets
    return 100 * float(right.double().mean())


def gradient(
    task: Task, model: torch.nn.Module, of: Tensor, random: torch.Generator, fault: str, step: int
) -> Sequence[Tensor]:
    batch = task.train.batch(of[torch.randint(len(of), (BATCH,), generator=random)])
    labels = 9 - batch.targets if fault == "flip" else batch.targets
    factor = {"negate": -1.0, "turn": -10.0 if step >= TURNS else 1.0}.get(fault, 1.0)
    loss = F.cross_entropy(model.train()(batch.inputs), labels)
    return [factor * part for part in torch.autograd.grad(loss, list(model.parameters()))]


if __name__ == "__main__":
    main()
