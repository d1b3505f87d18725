"""The weights of the ranks in an all-reduce.

Ranks that compute wrongly do not conspire, and ranks that compute rightly draw from the same data. So weights are equal
unless there is a reason.

Shapes: m ranks, k numbers in a sketch.
"""

import torch
from torch import Tensor

from zeno.rules.zeno_auto import CHOICE, OWN, Comparison, Memory

BY_CHANCE = 2.0  # times the variance that noise explains, up to which the means of ranks agree
USUAL, KNOWN = 4.0, 5  # times the usual variance at a step: a rank just broke; steps after which that is known
BROKEN = 2.0  # times the squared distance between the server's two gradients, where it is not known


class Agreement:
    """Whether ranks differ by no more than noise explains: at single steps, and in the mean over the steps."""

    def __init__(self) -> None:
        self.steps, self.sum, self.weight = 0, 0.0, 0.0  # decayed sums, of the variance among the ranks at single steps

    def at_once(self, compared: Comparison, there: Tensor) -> bool:
        """Adds a step, and tells whether the ranks that are there [m] differ as usual; False if that is not known."""
        now = _variance(compared.sketches[there])
        known = self.steps >= KNOWN
        if known and now > USUAL * self.sum / self.weight:
            return False
        self.steps += 1
        self.sum, self.weight = compared.decay * self.sum + now, compared.decay * self.weight + 1
        return known

    def in_the_mean(self, compared: Comparison, there: Tensor) -> bool:
        """Whether the means of the ranks that are there [m] are equal, up to noise."""
        decay, steps = compared.decay, float(compared.memory.counts[:CHOICE][there].min())  # decayed
        # The variance of a decayed mean of so many independent numbers, each with variance 1.
        of_mean: float = (2 / steps - 1 + decay) / (1 + decay)
        found = _variance(compared.memory.errors[:CHOICE][there].double())
        return self.steps > 0 and found <= BY_CHANCE * of_mean * self.sum / self.weight


def _variance(rows: Tensor) -> float:
    """The mean squared distance of rows [n, k] from their mean, without bias; 0 of a single one."""
    return float((rows - rows.mean(dim=0)).square().sum()) / max(1, len(rows) - 1)


def weigh(compared: Comparison, trust: Tensor, agreement: Agreement) -> tuple[Tensor, Memory]:
    """The weights of a step [m + 1], and the memory after it.

    The weights are by the trust [m] in each rank if, in the mean over the steps, the ranks agree, or their mixture is
    as near to the server's gradient g as its other one, o, on other samples; and if, at this step, the ranks differ as
    usual, or their mixture is near to g. Else the weights are those of `ZenoAuto` for the ranks that are trusted.
    """
    (o, g), errors = compared.halves, compared.memory.errors.double()
    trust = torch.where(compared.usable, trust, 0)
    if bool(trust.any()):
        even = trust / trust.sum()
        limit, off = (o - g).square().sum(), (even @ compared.sketches - g).square().sum()
        if not limit:  # the server's gradients say nothing
            return torch.cat([even, even.new_zeros(1)]), compared.memory
        bias, of_own = (even @ errors[:CHOICE]).square().sum(), errors[OWN].square().sum()
        usual = agreement.at_once(compared, trust > 0)
        agreed = agreement.in_the_mean(compared, trust > 0)
        fine = (agreed or bool(bias <= of_own)) and (usual or bool(off <= BROKEN * limit))
        if fine:
            return torch.cat([even, even.new_zeros(1)]), compared.memory
    return compared.weights(among=trust > 0)
