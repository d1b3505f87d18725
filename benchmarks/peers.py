"""Rules of other packages on our candidates, so that one run can compare them with ours.

A peer is called in two stages: `prepare` turns candidates [m, d] into what the package takes, outside the clock;
`call` is the package's own work, inside it. What was prepared serves one call: some packages write into it.
`same` says whether the package computes the published definition, as ours does, so that the updates must agree;
where it does not, `note` says what it computes instead. Read from the sources of byzfl 0.0.11, torchjd 0.18,
flwr 1.41 and geom_median 0.1.

Nothing here needs a peer to be installed: `missing` says which are not, and why.
"""

import importlib
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    """What the benchmark tells every rule; each takes its own from here, under the names our rules have for them."""

    faulty: int
    trim: int = 0
    keep: int | None = None  # of multi_krum; None: m - faulty
    radius: float = 1.0
    iterations: int = 1
    tolerance: float = 1e-6
    trusted: int = 0  # of monna: the row of the candidates that is trusted
    size: int = 2  # of a bucket
    norm: float = 1.0  # that clip allows


@dataclass(frozen=True)
class Peer:
    """One rule of one package, with its parameters."""

    package: str
    rule: str
    prepare: Callable[[Tensor], Any]
    call: Callable[[Any], Any]
    same: bool
    note: str = ""

    def __call__(self, candidates: Tensor) -> Tensor:
        """Both stages, and the result as a tensor."""
        return torch.as_tensor(self.call(self.prepare(candidates)))


def peers(rule: str, parameters: Parameters) -> list[Peer]:
    """Every installed package's version of a rule, or of pre-aggregators and a rule: "krum", "nnm+krum"."""
    found = []
    for package, (_, prepare) in PACKAGES.items():
        steps = [STEPS[package, name] for name in rule.split("+") if (package, name) in STEPS]
        if len(steps) <= rule.count("+"):
            continue  # checked first: an import takes seconds
        module, _ = _load(package)
        if module is not None:
            note = "; ".join(step.note for step in steps if step.note)
            found.append(
                Peer(package, rule, prepare, _chain(module, steps, parameters), all(step.same for step in steps), note)
            )
    return found


def missing() -> dict[str, str]:
    """The packages that cannot be imported -> why."""
    reasons = {package: _load(package)[1] for package in PACKAGES}
    return {package: reason for package, reason in reasons.items() if reason}


def with_one_bad_row(peer: Peer, value: float = math.nan) -> str:
    """What a peer makes of 7 workers of which one sends only NaN, or another `value`."""
    candidates = torch.randn(7, 1000, generator=torch.Generator().manual_seed(0))
    candidates[3] = value
    args = peer.prepare(candidates)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy warns of NaN; what comes out is the question
            result = peer.call(args)
    except Exception as error:
        return f"raises {_one_line(error)}"
    if result is None:
        return "returns None"
    return "finite" if bool(torch.as_tensor(result).isfinite().all()) else "not finite"


@dataclass(frozen=True)
class _Step:
    """How a package's rule or pre-aggregator is called: (module, prepared candidates, parameters) -> result."""

    call: Callable[[Any, Any, Parameters], Any]
    same: bool = True
    note: str = ""


# Package -> the module its rules are in, and how candidates are handed to it. Copies are made outside the clock.
PACKAGES: dict[str, tuple[str, Callable[[Tensor], Any]]] = {
    "byzfl": ("byzfl", Tensor.clone),  # its Clipping and ARC write into what they are given
    "torchjd": ("torchjd.aggregation", lambda candidates: candidates),
    # The functions behind flwr.server.strategy. Those of flwr.serverapp.strategy are woven into its messages, have
    # Krum's distances from a float32 Gram matrix, and run Krum once for Bulyan instead of anew after each removal.
    # A worker's reply is its layers, here one, and the number of its samples. A new list: Bulyan empties it.
    "flwr": ("flwr.server.strategy.aggregate", lambda candidates: [([row], 1) for row in candidates.numpy()]),
    "geom_median": ("geom_median.torch", list),
}

_BYZFL_KRUM = "n - f - 1 neighbours"
_TORCHJD_KRUM = "distances not squared, from a float32 Gram matrix"
_POWER = "one power iteration from a random vector in place of the top eigenvector"

# Nobody has phocas, cge or dnc.
STEPS: dict[tuple[str, str], _Step] = {
    ("byzfl", "mean"): _Step(lambda byzfl, x, p: byzfl.Average()(x)),
    ("byzfl", "median"): _Step(lambda byzfl, x, p: byzfl.Median()(x)),
    ("byzfl", "trimmed_mean"): _Step(lambda byzfl, x, p: byzfl.TrMean(f=p.trim)(x)),
    ("byzfl", "krum"): _Step(lambda byzfl, x, p: byzfl.Krum(f=p.faulty)(x), same=False, note=_BYZFL_KRUM),
    ("byzfl", "multi_krum"): _Step(
        lambda byzfl, x, p: byzfl.MultiKrum(f=p.faulty)(x), same=False, note=f"{_BYZFL_KRUM}, keeps n - f for any keep"
    ),
    ("byzfl", "geometric_median"): _Step(
        lambda byzfl, x, p: byzfl.GeometricMedian()(x), same=False, note="3 iterations from zero, for any tolerance"
    ),
    # Its start cannot be chosen (any m is refused), and it remembers the last update: a new object starts at zero.
    ("byzfl", "centered_clipping"): _Step(
        lambda byzfl, x, p: byzfl.CenteredClipping(L=p.iterations, tau=float(p.radius))(x)
    ),
    ("byzfl", "meamed"): _Step(lambda byzfl, x, p: byzfl.Meamed(f=p.faulty)(x)),
    ("byzfl", "mda"): _Step(lambda byzfl, x, p: byzfl.MDA(f=p.faulty)(x), note="first of the subsets that tie"),
    ("byzfl", "smea"): _Step(lambda byzfl, x, p: byzfl.SMEA(f=p.faulty)(x), same=False, note=_POWER),
    ("byzfl", "monna"): _Step(
        lambda byzfl, x, p: byzfl.MoNNA(f=p.faulty, idx=p.trusted)(x), note="trusts one of the candidates"
    ),
    ("byzfl", "caf"): _Step(lambda byzfl, x, p: byzfl.CAF(f=p.faulty)(x), same=False, note=_POWER),
    ("byzfl", "nnm"): _Step(lambda byzfl, x, p: byzfl.NNM(f=p.faulty)(x)),
    ("byzfl", "bucketing"): _Step(
        lambda byzfl, x, p: byzfl.Bucketing(s=p.size)(x), same=False, note="permuted by torch's global generator"
    ),
    ("byzfl", "clip"): _Step(lambda byzfl, x, p: byzfl.Clipping(c=float(p.norm))(x), note="overwrites its input"),
    ("byzfl", "arc"): _Step(lambda byzfl, x, p: byzfl.ARC(f=p.faulty)(x), note="overwrites its input"),
    ("torchjd", "mean"): _Step(lambda torchjd, x, p: torchjd.Mean()(x)),
    ("torchjd", "trimmed_mean"): _Step(lambda torchjd, x, p: torchjd.TrimmedMean(p.trim)(x)),
    ("torchjd", "krum"): _Step(lambda torchjd, x, p: torchjd.Krum(p.faulty)(x), same=False, note=_TORCHJD_KRUM),
    ("torchjd", "multi_krum"): _Step(
        lambda torchjd, x, p: torchjd.Krum(p.faulty, _kept(x, p))(x), same=False, note=_TORCHJD_KRUM
    ),
    ("flwr", "mean"): _Step(lambda flwr, x, p: flwr.aggregate(x)[0]),
    ("flwr", "median"): _Step(lambda flwr, x, p: flwr.aggregate_median(x)[0]),
    # It rounds share * m down, and trim / m * m may fall short of trim (1 of 49): one float further never does.
    ("flwr", "trimmed_mean"): _Step(
        lambda flwr, x, p: flwr.aggregate_trimmed_avg(x, math.nextafter(p.trim / len(x), 1) if p.trim else 0.0)[0]
    ),
    ("flwr", "krum"): _Step(lambda flwr, x, p: flwr.aggregate_krum(x, p.faulty, 0)[0]),
    ("flwr", "multi_krum"): _Step(lambda flwr, x, p: flwr.aggregate_krum(x, p.faulty, _kept(x, p))[0]),
    ("flwr", "bulyan"): _Step(
        lambda flwr, x, p: flwr.aggregate_bulyan(x, p.faulty, flwr.aggregate_krum, to_keep=0)[0],
        note="always at least 1 neighbour, which matters in the last round of faulty=1",
    ),
    # It stops once the sum of distances falls by less than this share. At its least this sum is flat: an update that
    # is off by a share of t raises it by about t^2.
    ("geom_median", "geometric_median"): _Step(
        lambda geom_median, x, p: geom_median.compute_geometric_median(x, ftol=p.tolerance**2).median,
        note="at most 100 iterations; stops by the objective, with ftol = tolerance^2",
    ),
}


def _kept(candidates: Any, parameters: Parameters) -> int:
    return len(candidates) - parameters.faulty if parameters.keep is None else parameters.keep


def _chain(module: Any, steps: list[_Step], parameters: Parameters) -> Callable[[Any], Any]:
    """One call after the other, as a function of what was prepared."""

    def call(args: Any) -> Any:
        for step in steps:
            args = step.call(module, args, parameters)
        return args

    return call


@cache
def _load(package: str) -> tuple[Any, str]:
    """(the module with a package's rules, "") or (None, why not)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what peers import in turn; a test run makes them errors
            with torchvision_or_stand_in() if package == "byzfl" else nullcontext():
                return importlib.import_module(PACKAGES[package][0]), ""
    except Exception as error:
        return None, _one_line(error)


@contextmanager
def torchvision_or_stand_in() -> Iterator[None]:
    """Where torchvision cannot be imported, something passes for it meanwhile, and nothing of it stays behind.

    `import byzfl` imports its training scripts, which build torchvision transforms; its rules need none of it. A
    torchvision that was built for another torch would keep us from them.
    """

    def loaded() -> dict[str, ModuleType]:
        return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "torchvision"}

    before = loaded()
    try:
        importlib.import_module("torchvision")
        works = True
    except Exception:  # a build for another torch raises RuntimeError
        works = False
    if not works:
        stand_in = ModuleType("torchvision")
        stand_in.__dict__.update(datasets=MagicMock(), transforms=MagicMock())
        sys.modules["torchvision"] = stand_in
    try:
        yield
    finally:
        if not works:
            for name in loaded():  # a failed import leaves submodules, too
                del sys.modules[name]
            sys.modules.update(before)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
