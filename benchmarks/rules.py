"""The time of each rule, next to the same rule in other packages and to one read of the candidates."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.clock import Contender, best_milliseconds
from benchmarks.peers import Parameters, peers, with_one_bad_row
from zeno.rules import (
    BANT,
    CAF,
    CGE,
    MDA,
    NNM,
    SMEA,
    AFLGuard,
    AutoBANT,
    Bulyan,
    ByGARS,
    CenteredClipping,
    DnC,
    FedGreed,
    FLTrust,
    GeometricMedian,
    Krum,
    MeaMed,
    Mean,
    Median,
    MoNNA,
    MultiKrum,
    Phocas,
    Rule,
    ServerAlone,
    SignGuard,
    TrimmedMean,
    Zeno,
    ZenoAuto,
    ZenoPP,
    chain,
)
from zeno.rules.aggregate import Aggregate
from zeno.rules.linalg import kernels
from zeno.rules.linalg.sorting_network import Columns

FAULTY = 4
RADIUS = 1000.0  # clips some of normal candidates of a million numbers
PARAMETERS = Parameters(faulty=FAULTY, trim=FAULTY, radius=RADIUS, iterations=5)
KERNELS = (  # compiled before the clock starts, as in the first seconds of a long run
    (Columns("mean"), 20),
    (Columns("median"), 20),
    (Columns("trimmed_mean", FAULTY), 20),
    (Columns("nearest_median", FAULTY), 20),
    (Columns("nearest_trimmed_mean", FAULTY), 20),
    (Columns("nearest_median", 2 * FAULTY), 20 - 2 * FAULTY),
)


class ConstantOracle:
    """An oracle that computes nothing: a descent is the first number of a candidate. `cost` measures real scores."""

    lr = 0.1

    def __init__(self, gradient: Tensor) -> None:
        self._gradient = gradient

    def descents(self, candidates: Tensor | Sequence[Tensor]) -> Tensor:
        return torch.stack([candidate[0] for candidate in candidates]).double()

    def gradient(self, after: Tensor | None = None) -> Tensor:
        return self._gradient

    def half_gradients(self) -> Tensor:
        return self._gradient.expand(2, -1)


def rules(faulty: int = FAULTY) -> dict[str, Rule]:
    """Every rule, with the same parameters as the peers."""
    return {
        "mean": Mean(),
        "median": Median(),
        "trimmed_mean": TrimmedMean(faulty),
        "meamed": MeaMed(faulty),
        "phocas": Phocas(faulty),
        "krum": Krum(faulty),
        "multi_krum": MultiKrum(faulty),
        "bulyan": Bulyan(faulty),
        "geometric_median": GeometricMedian(),
        "centered_clipping": CenteredClipping(RADIUS),
        "mda": MDA(faulty),
        "smea": SMEA(faulty),
        "monna": MoNNA(faulty),
        "cge": CGE(faulty),
        "caf": CAF(faulty),
        "dnc": DnC(faulty),
        "signguard": SignGuard(),
        "fltrust": FLTrust(),
        "bant": BANT(),
        "auto_bant": AutoBANT(),
        "bygars": ByGARS(),
        "fedgreed": FedGreed(),
        "zeno": Zeno(faulty),
        "zeno_auto": ZenoAuto(),
        "zenopp": ZenoPP(),
        "afl_guard": AFLGuard(),
        "server_alone": ServerAlone(),
        "nnm+trimmed_mean": chain(NNM(faulty), TrimmedMean(faulty)),
        "nnm+krum": chain(NNM(faulty), Krum(faulty)),
    }


IN_THE_TABLE = (
    "mean",
    "median",
    "trimmed_mean",
    "meamed",
    "phocas",
    "krum",
    "multi_krum",
    "bulyan",
    "geometric_median",
    "centered_clipping",
)


@dataclass
class Timing:
    """One rule at one size."""

    rule: str
    workers: int
    parameters: int
    milliseconds: float
    limit_milliseconds: float
    eager_milliseconds: float | None = None  # without a compiled kernel, where there is one
    peers: dict[str, float] = field(default_factory=dict)  # milliseconds
    differs: dict[str, str] = field(default_factory=dict)  # peers that compute something else -> what
    disagreement: dict[str, float] = field(default_factory=dict)  # largest difference, in units of the largest number

    @property
    def over_limit(self) -> float:
        return self.milliseconds / self.limit_milliseconds

    @property
    def speedup(self) -> float | None:
        """Against the fastest peer that computes the same."""
        same = [ms for name, ms in self.peers.items() if name not in self.differs]
        return min(same) / self.milliseconds if same else None


def limits(candidates: Tensor) -> dict[str, Contender]:
    """Three ways to read all numbers once; the fastest is the limit."""
    weights = candidates.new_full((len(candidates),), 1 / len(candidates))
    return {
        "limit: sum": Contender(lambda _: candidates.sum()),
        "limit: mean": Contender(lambda _: candidates.mean(dim=0)),
        "limit: mv": Contender(lambda _: weights @ candidates),
    }


def time_rule(name: str, rule: Rule, candidates: Tensor, with_peers: bool = True, rounds: int = 7) -> Timing:
    """One rule next to its peers and the limit."""
    oracle = ConstantOracle(candidates[0])
    others = peers(name, PARAMETERS) if with_peers else []
    kernel = with_peers and name in IN_THE_TABLE and kernels.suits(candidates)
    contenders = {
        **limits(candidates),
        "ours": Contender(lambda _: rule(candidates, oracle)),
        **(
            {"eager": Contender(lambda _: _eagerly(rule, candidates))} if kernel and name not in WITHOUT_NETWORK else {}
        ),
        **{peer.package: Contender(peer.call, partial(peer.prepare, candidates)) for peer in others},
    }
    best = best_milliseconds(contenders, rounds)
    update = rule(candidates, oracle).update
    scale = float(update.abs().max())
    return Timing(
        name,
        candidates.shape[0],
        candidates.shape[1],
        best["ours"],
        min(ms for contender, ms in best.items() if contender.startswith("limit")),
        best.get("eager"),
        {peer.package: best[peer.package] for peer in others},
        {peer.package: peer.note for peer in others if not peer.same},
        {peer.package: float((peer(candidates) - update).abs().max()) / scale for peer in others if peer.same},
    )


WITHOUT_NETWORK = {"krum", "multi_krum", "geometric_median", "centered_clipping"}  # have no network


def _eagerly(rule: Rule, candidates: Tensor) -> Aggregate:
    with patch.dict(os.environ, ZENO_COMPILE="0"):
        return rule(candidates)


def make_kernels(say: Callable[[str], None], wanted: Iterable[tuple[Columns, int]] = KERNELS) -> None:
    """Compiles the kernels that the table needs and the cache does not have."""
    for columns, n in wanted:
        if kernels.find(columns, n) is None:
            say(f"compiling {columns.formula} of {n} rows, once for this machine; half a minute")
            if kernels.start(columns, n).wait() != 0:
                say(f"{columns.formula} could not be compiled; the eager form is measured")


def table(sizes: Iterable[int], on_timing: Callable[[Timing], None] = lambda _: None) -> list[Timing]:
    """The rules that have peers, for 20 workers, next to every peer that is installed."""
    timings = []
    for d in sizes:
        candidates = random_candidates(20, d)
        for name in IN_THE_TABLE:
            timings.append(time_rule(name, rules()[name], candidates))
            on_timing(timings[-1])
    return timings


def growth(sizes: Iterable[tuple[int, int]], on_timing: Callable[[Timing], None] = lambda _: None) -> list[Timing]:
    """How cost grows with the number of workers and of parameters: (m, d)."""
    timings = []
    for m, d in sizes:
        candidates = random_candidates(m, d)
        for name, rule in rules(faulty=m // 5).items():
            if name == "smea" and m > 20:
                continue  # tries every group
            if name == "bulyan" and 4 * (m // 5) + 3 > m:
                continue
            timings.append(time_rule(name, rule, candidates, with_peers=False, rounds=3))
            on_timing(timings[-1])
    return timings


def random_candidates(m: int, d: int) -> Tensor:
    """Normal numbers around a common direction [m, d]: gradients look like this to a rule."""
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(d, generator=generator)
    candidates = torch.empty(m, d)
    for row in candidates:
        row.normal_(generator=generator).add_(direction, alpha=0.5)
    return candidates


def one_bad_worker_of_seven(value: float) -> list[dict[str, str]]:
    """Whether one worker of 7 that sends only NaN, or another value, moves the update; for every rule and peer."""
    candidates = torch.randn(7, 1000, generator=torch.Generator().manual_seed(0))
    candidates[3] = value
    rows = []
    ours: Mapping[str, Any] = rules(faulty=1)
    for name, rule in ours.items():
        usable = [i for i in range(7) if i != 3]
        update = rule(candidates, ConstantOracle(candidates[0])).update
        alone: Rule = rules(faulty=0)[name]
        same = torch.allclose(update, alone(candidates[usable], ConstantOracle(candidates[0])).update, atol=1e-5)
        row = {"rule": name, "zeno": "as without it" if same else "moved"}
        for peer in peers(name, Parameters(faulty=1, trim=1, radius=RADIUS, iterations=5)):
            row[peer.package] = with_one_bad_row(peer, value)
        rows.append(row)
    return rows
