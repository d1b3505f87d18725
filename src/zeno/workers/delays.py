"""How long a worker takes for a gradient in a simulated asynchronous run. The unit is the time of one gradient."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Delay(Protocol):
    """The time from asking this one of so many workers to its reply."""

    def __call__(self, worker: int, workers: int, rng: np.random.Generator) -> float: ...


@dataclass(frozen=True)
class Constant:
    """Every gradient takes the same time, so the workers reply in turn."""

    def __call__(self, worker: int, workers: int, rng: np.random.Generator) -> float:
        return 1.0


@dataclass(frozen=True)
class Uniform:
    """The time of one gradient, and a delay drawn evenly from `low` to `high`."""

    low: float = 0.0
    high: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high < math.inf:
            raise ValueError(f"Uniform needs 0 <= low <= high. Found low={self.low!r} and high={self.high!r}.")

    def __call__(self, worker: int, workers: int, rng: np.random.Generator) -> float:
        return 1 + float(rng.uniform(self.low, self.high))


@dataclass(frozen=True)
class Lognormal:
    """A lognormal time with median 1: exp(sigma * z) for a normal z. Larger sigma, more stragglers."""

    sigma: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.sigma <= 10:
            raise ValueError(f"Lognormal needs sigma of at least 0 and at most 10. Found sigma={self.sigma!r}.")

    def __call__(self, worker: int, workers: int, rng: np.random.Generator) -> float:
        return math.exp(self.sigma * float(rng.standard_normal()))


@dataclass(frozen=True)
class SlowWorkers:
    """The last `on` workers take `factor` times as long as the others. Faults take the first workers."""

    factor: float = 10.0
    on: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf or type(self.on) is not int or self.on < 1:
            found = f"factor={self.factor!r} and on={self.on!r}"
            raise ValueError(f"The delay slow needs a finite factor above 0 and at least 1 worker. Found {found}.")

    def __call__(self, worker: int, workers: int, rng: np.random.Generator) -> float:
        if self.on > workers:
            raise ValueError(f"The delay slow needs on of at most workers={workers}. Found on={self.on}. Lower it.")
        return float(self.factor) if worker >= workers - self.on else 1.0


DELAYS: dict[str, type[Delay]] = {
    "constant": Constant,
    "uniform": Uniform,
    "lognormal": Lognormal,
    "slow": SlowWorkers,
}
"""Delays by their names on the command line and in TOML files."""
