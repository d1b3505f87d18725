"""DnC, divide and conquer (Shejwalkar and Houmansadr, NDSS 2021): drop outliers along the top singular vector."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from zeno.rules.linalg.eigen import top
from zeno.rules.randomness import numbers
from zeno.rules.rule import Aggregate, Count, Oracle, PositiveCount, Rows, Rule, Tolerated, keep_lowest


@dataclass(frozen=True)
class DnC(Rule):
    """Average of the candidates that stand out in none of several random sets of coordinates; tolerates a minority.

    In each set, the `faulty` largest projections on the top singular vector are dropped. The sets are a secret of the
    server, as the order of `Bucketing` is; with a `seed`, they follow from it and the step. Should every candidate be
    dropped somewhere, those dropped least often are kept.

    As published, all are compared once, along one direction. So `faulty` workers are tolerated if they stand out by
    about the same size, and a large gradient hides behind a much larger one: of 1e12 * a and 1e6 * a, only the first is
    dropped. `chain(ARC(faulty), DnC(faulty))` tolerates these too, since ARC limits all sizes first.
    """

    faulty: Tolerated
    repeats: PositiveCount = 5
    coordinates: PositiveCount = 10_000
    seed: Count | None = None

    def first_state(self, secret: Callable[[], int]) -> object:
        return (secret(), 0) if self.seed is None else None

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        rows.require(2 * self.faulty + 1, "more than 2 * faulty", faulty=self.faulty)
        rng, state = numbers(self.seed, state)
        keep = rows.n - rows.remaining(self.faulty)
        times_kept = torch.zeros(rows.n, device=rows.device)
        for _ in range(self.repeats):
            chosen = np.sort(rng.choice(rows.d, size=min(self.coordinates, rows.d), replace=False))
            part = rows.at(torch.from_numpy(chosen)).double()
            centred = part - part.mean(dim=0)
            products = centred @ centred.T
            _, vector = top(products)
            projections = (products @ vector).abs()  # on the top singular vector, up to a factor
            times_kept += keep_lowest(projections, keep)
        kept = times_kept == times_kept.max()
        return rows.average(kept, scores=times_kept.double(), state=state)
