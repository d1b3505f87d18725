"""BANT (Molodtsov et al., 2025): trust built up from how far each candidate lowers the loss on the server's samples.

The promise p of a worker is the descent of its candidate, and its trust r is the decayed mean of its promises:

    p_i = max(0, f_r(x) - f_r(x - lr * u_i)),  divided by their sum
    r_i <- (1 - rate) * r_i + rate * p_i
    w_i = r_i where p_i > 0, else 0,           divided by their sum
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from zeno.rules.rule import Aggregate, Change, Oracle, Rate, Rows, Rule, Samples

LEAST_TRUST = 1e-100
"""Trust never becomes 0: nobody would regain it if only such workers replied."""


@dataclass(frozen=True)
class BANT(Rule):
    """Average of the candidates that lower the server's loss, weighted by their workers' trust over the steps.

    Tolerates any number of faulty workers. The update is zero if no candidate lowers the loss. A worker without a
    usable candidate keeps its trust, which starts equal for all. At each step the others divide theirs anew.
    """

    rate: Rate = 0.5  # beta in the paper
    batch_size: Samples = 64

    @property
    def scores_on_arrival(self) -> bool:
        return True

    def for_workers(self, state: object, change: Change) -> object:
        return change(state, float(state.mean())) if isinstance(state, Tensor) else state

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        trust = rows.remembered(state, start=1 / rows.m)  # r
        descents = rows.descents(oracle).nan_to_num(-torch.inf, -torch.inf, -torch.inf)
        promises = descents.clamp(min=0)
        if bool(promises.any()):
            promises = promises / promises.sum() * rows.by_row(trust).sum()
            trust = trust + self.rate * (rows.by_worker(promises, without=trust) - trust)
            trust = trust.clamp(min=LEAST_TRUST)
        weights = torch.where(descents > 0, rows.by_row(trust), 0)
        weights = weights / weights.sum().clamp(min=LEAST_TRUST)
        return rows.weighted_sum(weights, scores=descents, state=trust)
