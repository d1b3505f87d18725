"""A regression: twelve hospitals predict blood glucose, and seven of them have wrong targets.

    python examples/regression.py

The targets are in mmol/l. Hospitals 0 to 4 have theirs in mg/dl, 18 times as large. Hospitals 5 and 6 have lost a
decimal point. Hospitals 7 to 11 are right, and hospital 11 sends nothing at every fifth step. The reference is training
on hospitals 7 to 11 alone.

The example also shows what `zeno.Server` supports: gradients by name, None for a missing gradient, any loss, an
optimizer with momentum and one learning rate per parameter group, and a schedule.

Output (400 steps; 17 s of one core; the noise in the targets is 0.3):

    8 of 12 workers are suspect: 0, 1, 2, 3, 4, 5, 6 and 11. That is the majority: either they are faulty, or the rule
    trusts the wrong workers, or the model has diverged.
    error: good ones 0.38, Zeno 0.38, mean 56.63 mmol/l
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LinearLR

import zeno

torch.set_num_threads(1)  # the model is tiny


def measure(patients: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Features of patients [n, 5], and their glucose [n, 1] in mmol/l: 6 on average, with noise of 0.3."""
    known = torch.randn(patients, 5, generator=rng)
    meal, insulin, stress = known[:, 0], known[:, 1], known[:, 2]
    glucose = 6 + 2 * torch.tanh(meal - insulin) + 0.8 * torch.sin(2 * stress) + 0.5 * meal * known[:, 3]
    return known, (glucose + 0.3 * torch.randn(patients, generator=rng))[:, None]


def as_reported(hospital: int, glucose: Tensor) -> Tensor:
    if hospital < 5:
        return 18 * glucose  # mg/dl
    return 10 * glucose if hospital < 7 else glucose


def reply(model: nn.Module, hospital: int, step: int, rng: torch.Generator) -> dict[str, Tensor | None] | None:
    """What a hospital sends: its gradients by name, or nothing."""
    known, glucose = measure(50, rng)
    if hospital == 11 and step % 5 == 0:
        return None
    model.zero_grad()
    F.huber_loss(model(known), as_reported(hospital, glucose)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def error(model: nn.Module) -> float:
    """Root mean squared error on 2,000 patients, in mmol/l."""
    known, glucose = measure(2000, torch.Generator().manual_seed(1))
    with torch.no_grad():
        return float(F.mse_loss(model(known), glucose).sqrt())


def train(name: str, hospitals: range, rule: zeno.Rule, steps: int) -> zeno.Server:
    torch.manual_seed(0)
    body, head = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()), nn.Linear(64, 1)
    model = nn.Sequential(body, head)
    groups = [{"params": body.parameters(), "lr": 0.1}, {"params": head.parameters(), "lr": 0.02}]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    schedule = LinearLR(optimizer, 1.0, 0.1, total_iters=steps)

    rng = torch.Generator().manual_seed(0)
    samples = [measure(50, rng) for _ in range(10)]  # 500 patients whose values the server has verified
    server = zeno.Server(model, F.huber_loss, optimizer, samples, rule)
    for step in range(steps):
        server.step([reply(model, hospital, step, rng) for hospital in hospitals])
        schedule.step()
        if (step + 1) % (steps // 4) == 0:
            rates = "/".join(f"{rate:.3f}" for rate in schedule.get_last_lr())
            print(f"{name}, step {step + 1:3}: error {error(model):.2f} mmol/l, learning rates {rates}", flush=True)
    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="fewer steps, for the tests")
    steps = 120 if parser.parse_args().small else 400

    good = train("the good ones", range(7, 12), zeno.Mean(), steps)
    mean = train("mean of all", range(12), zeno.Mean(), steps)
    server = train("Zeno of all", range(12), zeno.Zeno(trim=8, batch_size=50), steps)
    print(server.ledger)
    print(
        f"error: good ones {error(good.model):.2f}, Zeno {error(server.model):.2f}, mean {error(mean.model):.2f} mmol/l"
    )
