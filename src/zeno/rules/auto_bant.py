"""AutoBANT (Molodtsov et al., 2025): the weights whose update lowers the loss on the server's samples most.

Mirror descent over all weights w >= 0 that sum to 1, from equal ones:

    minimise f_r(x - lr * sum_i w_i u_i)
    slope_i = lr * <grad f_r(x - lr * sum_j w_j u_j), u_i>       minus the derivative by w_i
    w_i <- w_i * exp(step_size * slope_i),                       divided by their sum
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from zeno.rules.linalg.passes import all_finite
from zeno.rules.rule import Aggregate, Oracle, Positive, PositiveCount, Rows, Rule, Samples, TooFewUsable

LARGEST = 1e300  # of an exponent: sums of a few of them are finite


@dataclass(frozen=True)
class AutoBANT(Rule):
    """Average with the weights that lower the server's loss most, by mirror descent; tolerates any number of faulty.

    `steps` gradients on the server's samples per update. `step_size` is not relative: where gradients are small, it
    has to be larger. The authors' code takes 1 for updates of whole epochs, with which the weights of single gradients
    hardly change. A candidate so large that the loss of a mixture with it is not finite gets weight 0.
    """

    steps: PositiveCount = 5
    step_size: Positive = 100.0
    batch_size: Samples = 64

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        oracle = rows.require_oracle(oracle)
        logs = torch.zeros(rows.n, dtype=torch.float64, device=rows.device)  # of the weights, up to a constant
        for _ in range(self.steps):
            logs, gradient = self._gradient(rows, oracle, logs)
            exponents = self.step_size * rows.slopes(gradient, oracle)
            logs = logs + exponents.nan_to_num(-LARGEST).clamp(-LARGEST, LARGEST)
            logs = logs - logs.max()
        weights = logs.softmax(dim=0)
        return rows.weighted_sum(weights, scores=weights)

    def _gradient(self, rows: Rows, oracle: Oracle, logs: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient [d] after the update with these weights; without the longest rows if it is not finite."""
        for _ in range(rows.n):
            gradient = rows.server_gradient(oracle, after=rows.weighted_sum(logs.softmax(dim=0)).update)
            if all_finite(gradient):
                return logs, gradient
            rows.server_gradient(oracle)  # raises if the server's samples are to blame
            longest = torch.where(logs > -torch.inf, rows.squared_norms(), -1).argmax()
            logs = logs.index_fill(0, longest, -torch.inf)
            if not bool((logs > -torch.inf).any()):
                break
        raise TooFewUsable.of(self, 1, torch.zeros(rows.m, dtype=torch.bool))
