"""Bucketing (Karimireddy, He and Jaggi, ICLR 2022): a pre-aggregator."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from zeno.rules.randomness import numbers
from zeno.rules.rule import Count, PositiveCount, PreAggregator, Rows


@dataclass(frozen=True)
class Bucketing(PreAggregator):
    """Candidates in random order, averaged in groups of `size`; the order of each step is a secret of the server.

    The rule after it sees ceil(m / size) rows, and as many of them may be faulty as candidates are. A run derives the
    secret from its seed and the server's samples, so that it can be repeated; otherwise it comes from the operating
    system. It is part of the state, and so of checkpoints. With a `seed`, the order follows from it and the step alone:
    for tests, since workers that know the seed can choose what to share a group with.
    """

    size: PositiveCount = 2
    seed: Count | None = None

    def first_state(self, secret: Callable[[], int]) -> object:
        return (secret(), 0) if self.seed is None else None

    def before(self, rows: Rows, state: object) -> tuple[Rows, object]:
        rng, state = numbers(self.seed, state)
        order = torch.from_numpy(rng.permutation(rows.n))
        group = torch.arange(rows.n) // min(self.size, rows.n)
        member = torch.zeros(int(group[-1]) + 1, rows.n, dtype=torch.float64, device=rows.device)
        member[group, order] = 1
        return rows.mixtures(member / member.sum(dim=1, keepdim=True), member > 0), state
