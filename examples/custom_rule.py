"""A rule of your own: the mean of the candidates, each weighed by how much it lowers the server's own loss.

    python examples/custom_rule.py

A rule is anything that can be called as (candidates [m, d], descent, state) -> zeno.Aggregate. Row i is worker i, and a
worker from which nothing usable came is a row of NaN: a rule sets such rows aside, and none of their numbers may move
the update. A frozen dataclass has a repr, equality and pickling for free, which records and clusters need. A field
`batch_size` says how many samples of the server's own candidates are tried on.

It is used twice: in a simulated run, beside other rules, and in a loop of one's own.

What comes out (12 s of one core; 12 of 20 workers have learned the wrong thing, 2 more send NaN):

    Of NaN alone it makes no update: DescentWeighted(batch_size=32) needs 1 usable candidates. Found 0 of 20.
    zeno.train with Median(): accuracy 0.6%
    zeno.train with DescentWeighted(batch_size=32): accuracy 89.2%
    zeno.Server with DescentWeighted(batch_size=32): accuracy 98.8%
"""

import argparse
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zeno

torch.set_num_threads(1)  # as long as the model is tiny


@dataclass(frozen=True)
class DescentWeighted:
    """Mean of the candidates that lower the server's own loss, weighed by how much they do; no update if none does."""

    batch_size: int = 32  # samples of the server's own

    def __call__(self, candidates: Tensor, descent: zeno.Descent | None = None, state: object = None) -> zeno.Aggregate:
        if descent is None:
            raise ValueError(f"{self} needs descent, to try candidates on samples of the server's own. Found None.")
        usable = candidates.isfinite().all(dim=1)  # [m]
        if not usable.any():
            raise zeno.TooFewUsable(self, 1, usable)
        scores = descent(candidates).double()
        scores = scores.where(usable & scores.isfinite(), -torch.inf)  # a loss may overflow where no number does
        weights = scores.clamp(min=0)
        kept = weights > 0
        weights = weights[kept] / weights[kept].sum()  # [k]
        update = weights.to(candidates) @ candidates[kept]  # not `weights @ candidates`: 0 * NaN is NaN
        return zeno.Aggregate(update, scores, kept)


def simulated(rule: zeno.Rule, steps: int) -> float:
    fault = zeno.LabelFlip(on=12) + zeno.NonFinite(on=2)
    records = zeno.train(zeno.Run(rule=rule, fault=fault, faulty=14, steps=steps, eval_every=steps))
    accuracy = records[-1].accuracy
    assert accuracy is not None
    return accuracy


def in_a_loop(rule: zeno.Rule, steps: int) -> float:
    """Which of two numbers is larger? Workers 0 to 11 have learned the opposite, 12 and 13 send NaN."""
    torch.manual_seed(0)
    inputs = torch.randn(2000, 10)
    targets = (inputs[:, 0] > inputs[:, 1]).long()
    model = nn.Linear(10, 2)
    samples = [(inputs[:200], targets[:200])]
    server = zeno.Server(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.5), samples, rule)

    def gradient(worker: int) -> Tensor:
        rows = torch.randint(200, 2000, (50,))
        model.zero_grad()
        F.cross_entropy(model(inputs[rows]), 1 - targets[rows] if worker < 12 else targets[rows]).backward()
        return zeno.flatten(model) * (torch.nan if worker in (12, 13) else 1)

    for _ in range(steps):
        server.step([gradient(worker) for worker in range(20)])
    return float((model(inputs).argmax(dim=1) == targets).float().mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="fewer steps, for the tests")
    steps = 100 if parser.parse_args().small else 200

    nothing = torch.full((20, 3), torch.nan)
    try:
        DescentWeighted()(nothing, lambda candidates: candidates.sum(dim=1))
    except zeno.TooFewUsable as error:
        print(f"Of NaN alone it makes no update: {error}")
    for rule in (zeno.Median(), DescentWeighted()):
        print(f"zeno.train with {rule}: accuracy {simulated(rule, steps):.1%}", flush=True)
    print(f"zeno.Server with {DescentWeighted()}: accuracy {in_a_loop(DescentWeighted(), steps // 2):.1%}")
