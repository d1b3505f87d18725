"""DnC, divide and conquer (Shejwalkar and Houmansadr, NDSS 2021): drop outliers along the top singular vector."""

from dataclasses import dataclass

import numpy as np
import torch

from zeno.rules.linalg.eigen import top
from zeno.rules.rule import Aggregate, Count, Oracle, PositiveCount, Rows, Rule, Tolerated, keep_lowest


@dataclass(frozen=True)
class DnC(Rule):
    """Average of the candidates that stand out in none of several random sets of coordinates; tolerates a minority.

    In each set, the `faulty` largest projections on the top singular vector are dropped. The sets follow from `seed`
    and the number of steps so far. Should every candidate be dropped somewhere, those dropped least often are kept.
    """

    faulty: Tolerated
    repeats: PositiveCount = 5
    coordinates: PositiveCount = 10_000
    seed: Count = 0

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        rows.require(2 * self.faulty + 1, "more than 2 * faulty", faulty=self.faulty)
        step = state if isinstance(state, int) else 0
        rng = np.random.default_rng((self.seed, step))
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
        return rows.average(kept, scores=times_kept.double(), state=step + 1)
