"""The cost of the server's work, next to the paper's claims about it.

The paper counts passes over d numbers: Median m of them, Krum one for each of the m (m - 1) / 2 pairs, and Zeno one for
each of the m + 1 forwards of n_r samples, as if a forward of one sample cost d operations. Here the same is timed, on
random pictures of the right shape: our rules, which read the candidates once, and plain torch, as the paper counts.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import steps
from zeno.problem.dataset import Batch
from zeno.problem.problem import Problem
from zeno.rules import Krum, Mean, Median, Zeno, ZenoAuto
from zeno.rules.aggregate import Aggregate
from zeno.server.core import STATISTICS_SAMPLES

TRIM, RHO = 4, 5e-4  # b, rho in the paper
WORKERS = (10, 20, 50, 100, 200)  # of ZenoAuto
N_R = 4  # that the paper's claims are about
GRADIENT = "one worker's gradient"
STATISTICS = "running statistics"
ABOUT = 2.0  # times as much is still about as much


def zeno_on(samples: int) -> str:
    return f"zeno, n_r={samples}"


class Claim(NamedTuple):
    """A claim of the paper, and its ratio: in our code, and in plain torch."""

    text: str
    most: float  # of the ratio, for the claim to hold
    ours: float
    plain: float

    def verdicts(self) -> str:
        ratios = {"here": self.ours, "in plain torch": self.plain}
        return "; ".join(f"{where} {x:.2g} x, {'holds' if x <= self.most else 'fails'}" for where, x in ratios.items())


@dataclass(frozen=True)
class Cost:
    """Milliseconds of everything, measured in turns."""

    model: str
    parameters: int  # d
    workers: int  # m
    worker_samples: int  # in a worker's gradient
    multiplications: int  # of a forward, for one sample
    ours: dict[str, float]
    plain: dict[str, float]  # the same in plain torch, for the rules

    def claims(self) -> list[Claim]:
        zeno = zeno_on(N_R)
        ours, plain = self.ours, {**self.ours, **self.plain}  # a gradient is plain torch already

        def ratios(other: str, more: str | None = None) -> tuple[float, float]:
            here, there = ((ms[zeno] + (ms[more] if more else 0)) / ms[other] for ms in (ours, plain))
            return here, there

        worker = f"one worker's gradient of {self.worker_samples} samples"
        return [
            Claim(f"Zeno costs at most about n_r = {N_R} times as much as Median", ABOUT * N_R, *ratios("median")),
            Claim("Zeno costs less than Krum", 1.0, *ratios("krum")),
            Claim(f"Zeno costs less than {worker}", 1.0, *ratios(GRADIENT)),
            Claim("the same with the running statistics, which are ours", 1.0, *ratios(GRADIENT, STATISTICS)),
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "claims": [{**claim._asdict(), "verdicts": claim.verdicts()} for claim in self.claims()],
        }


def measure(
    model: str = "cnn",
    workers: int = steps.M,
    worker_samples: int = 100,
    samples: Sequence[int] = (1, N_R, 16),
    rounds: int = 5,
) -> Cost:
    """All rules, ours and plain, and one worker's gradient, in turns; the best time of each."""
    problem = steps.paper_problem(model)
    x, candidates = problem.flat.clone(), steps.paper_candidates(problem, workers)
    own = {zeno_on(n): steps.samples(n, seed=2) for n in samples}
    twin = steps.plain(problem.model)
    ours: dict[str, Callable[[], object]] = {
        GRADIENT: partial(problem.gradient, x, steps.samples(worker_samples, seed=3), seed=0),
        STATISTICS: partial(problem.refresh, x, steps.samples(STATISTICS_SAMPLES, seed=5).inputs),
        "mean": partial(Mean(), candidates),
        "median": partial(Median(), candidates),
        "krum": partial(Krum(TRIM), candidates),
        **{name: partial(_zeno, problem, x, candidates, batch) for name, batch in own.items()},
    }
    plain: dict[str, Callable[[], object]] = {
        "mean": partial(torch.mean, candidates, dim=0),
        "median": partial(plain_median, candidates),
        "krum": partial(plain_krum, candidates),
        **{name: partial(plain_zeno, twin, x, candidates, batch) for name, batch in own.items()},
    }
    milliseconds = steps.take_turns({**ours, **{f"plain {name}": way for name, way in plain.items()}}, rounds)
    best = {name: min(times) for name, times in milliseconds.items()}
    return Cost(
        model,
        problem.size,
        workers,
        worker_samples,
        multiplications(problem),
        {name: best[name] for name in ours},
        {name: best[f"plain {name}"] for name in plain},
    )


def zeno_auto_by_workers(model: str = "cnn", worker_samples: int = 100, rounds: int = 5) -> dict[str, float]:
    """A step of ZenoAuto, in units of one worker's gradient, for more and more workers."""
    problem = steps.paper_problem(model)
    x, candidates = problem.flat.clone(), steps.paper_candidates(problem, max(WORKERS))
    rule = ZenoAuto()
    batch = steps.samples(rule.samples, seed=2)
    ways: dict[str, Callable[[], object]] = {
        GRADIENT: partial(problem.gradient, x, steps.samples(worker_samples, seed=3), seed=0)
    }
    for m in WORKERS:
        state = rule(candidates[:m], problem.at(x, steps.LR, batch)).state
        ways[str(m)] = partial(_zeno_auto, rule, problem, x, candidates[:m], batch, state)
    milliseconds = {name: median(times) for name, times in steps.take_turns(ways, rounds).items()}
    return {m: milliseconds[m] / milliseconds[GRADIENT] for m in map(str, WORKERS)}


def _zeno_auto(rule: ZenoAuto, problem: Problem, x: Tensor, candidates: Tensor, batch: Batch, state: object) -> object:
    return rule(candidates, problem.at(x, steps.LR, batch), state)


def _zeno(problem: Problem, x: Tensor, candidates: Tensor, batch: Batch) -> Aggregate:
    """All that the server does for Zeno: a forward at x, one for each candidate, their norms, and the average."""
    return Zeno(TRIM, RHO, len(batch.targets))(candidates, problem.at(x, steps.LR, batch))


def plain_median(candidates: Tensor) -> Tensor:
    """Sorts every column."""
    ordered, m = candidates.sort(dim=0).values, len(candidates)
    return (ordered[(m - 1) // 2] + ordered[m // 2]) / 2


def plain_krum(candidates: Tensor) -> Tensor:
    """One pass for each pair: 20 * 19 / 2 = 190 of them."""
    m = len(candidates)
    distances = candidates.new_zeros(m, m)
    for i, j in combinations(range(m), 2):
        distances[i, j] = distances[j, i] = (candidates[i] - candidates[j]).square().sum()
    nearest = distances.sort(dim=1).values[:, 1 : m - TRIM - 1]
    return candidates[nearest.sum(dim=1).argmin()]


def plain_zeno(model: nn.Module, x: Tensor, candidates: Tensor, batch: Batch) -> Tensor:
    """A loop over the candidates, each put into the model parameter by parameter."""
    scores = steps.naive_scores(model, x, candidates, batch) - RHO * candidates.square().sum(dim=1)
    return candidates[scores.topk(len(candidates) - TRIM).indices].mean(dim=0)


def multiplications(problem: Problem) -> int:
    """Of a forward, for one sample."""
    problem.model.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        problem.model(steps.samples(1).inputs)
    return int(counter.get_total_flops()) // 2  # a multiplication and an addition count as two
