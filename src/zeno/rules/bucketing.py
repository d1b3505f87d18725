"""Bucketing (Karimireddy, He and Jaggi, ICLR 2022): a pre-aggregator."""

from dataclasses import dataclass

import numpy as np
import torch

from zeno.rules.rule import Count, PositiveCount, PreAggregator, Rows


@dataclass(frozen=True)
class Bucketing(PreAggregator):
    """Candidates in random order, averaged in groups of `size`; the order follows from `seed` and the step.

    The rule after it sees ceil(m / size) rows, and as many of them may be faulty as candidates are.
    """

    size: PositiveCount = 2
    seed: Count = 0

    def before(self, rows: Rows, state: object) -> tuple[Rows, object]:
        step = state if isinstance(state, int) else 0
        order = torch.from_numpy(np.random.default_rng((self.seed, step)).permutation(rows.n))
        group = torch.arange(rows.n) // min(self.size, rows.n)
        member = torch.zeros(int(group[-1]) + 1, rows.n, dtype=torch.float64, device=rows.device)
        member[group, order] = 1
        return rows.mixtures(member / member.sum(dim=1, keepdim=True), member > 0), step + 1
