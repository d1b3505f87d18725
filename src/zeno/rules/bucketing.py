"""Bucketing (Karimireddy, He and Jaggi, ICLR 2022): a pre-aggregator."""

from dataclasses import dataclass

import numpy as np
import torch

from zeno.rules.rows import Rows
from zeno.rules.rule import check_count


@dataclass(frozen=True)
class Bucketing:
    """Candidates in random order, averaged in groups of `size`; the order follows from `seed` and the step.

    The rule after it sees ceil(m / size) rows, and as many of them may be faulty as candidates are.
    """

    size: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        check_count(self, "size", self.size, 1)
        check_count(self, "seed", self.seed, 0)

    def before(self, rows: Rows, state: object) -> tuple[Rows, object]:
        step = state if isinstance(state, int) else 0
        rows.lowered(self, rows.m - 1)
        order = torch.from_numpy(np.random.default_rng((self.seed, step)).permutation(rows.n))
        groups = order.split(min(self.size, rows.n))
        member = torch.zeros(len(groups), rows.n, dtype=torch.float64, device=rows.mix.device)
        for group, members in enumerate(groups):
            member[group, members] = 1
        return rows.mixed(member / member.sum(dim=1, keepdim=True), member > 0), step + 1
