"""DnC, divide and conquer (Shejwalkar and Houmansadr, NDSS 2021): drop what stands out along the widest direction."""

from dataclasses import dataclass

import numpy as np
import torch

from zeno.rules.linalg.eigen import top
from zeno.rules.rows import OnRows, Rows, keep_lowest
from zeno.rules.rule import Aggregate, Descent, check_count, check_majority


@dataclass(frozen=True)
class DnC(OnRows):
    """Average of the candidates that stand out in none of several random sets of coordinates; bears a minority.

    In each set, the `faulty` largest projections on the top singular vector are dropped. The sets follow from `seed`
    and the number of steps so far. Should every candidate be dropped somewhere, those dropped least often are kept.
    """

    faulty: int
    repeats: int = 5
    coordinates: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        check_count(self, "faulty", self.faulty, 0)
        check_count(self, "repeats", self.repeats, 1)
        check_count(self, "coordinates", self.coordinates, 1)
        check_count(self, "seed", self.seed, 0)

    def on_rows(self, rows: Rows, descent: Descent | None, state: object) -> Aggregate:
        check_majority(self, "faulty", self.faulty, rows.size)
        step = state if isinstance(state, int) else 0
        rng = np.random.default_rng((self.seed, step))
        keep = rows.n - rows.lowered(self, self.faulty)
        times_kept = torch.zeros(rows.n, device=rows.candidates.tensor.device)
        for _ in range(self.repeats):
            chosen = np.sort(rng.choice(rows.d, size=min(self.coordinates, rows.d), replace=False))
            part = rows.at(torch.from_numpy(chosen)).double()
            centred = part - part.mean(dim=0)
            products = centred @ centred.T
            _, vector = top(products)
            projections = (products @ vector).abs()  # on the top singular vector, up to a factor
            times_kept += keep_lowest(projections, keep)
        kept = times_kept == times_kept.max()
        return rows.result(rows.average(kept), kept, times_kept.double(), step + 1)
