"""The weights of ZenoAuto: of all that have about the least error, the most even, which have the least noise.

The columns are n workers, the choice of a single step, the server's own gradient and, last, zero. Each is given by its
error [k], the column minus the judge g: its decayed mean and, scaled, the error of this step. The error of a mixture is
the mixture of the errors, so its squared length is E(w).

How near is about as near follows from the share of the server's noise that is repeated at every step. The nearest
mixture fits that noise, and is a little too near. The server's own gradient has noise of its own: where it agrees that
another mixture is farther, that is not the noise.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from zeno.rules.linalg.simplex import Mixtures

LEAST = 0.02  # of an equal weight: what is below belongs to large errors, and risks more than it adds
SHORT = 1e-3  # of the length of the server's own gradient
MARGIN = 0.2  # up to which squared errors, or cosines, may count as equal
FITTED = 4.0  # times the share of the noise that repeats: by so much the nearest mixture is too near (on the digits)
AGREED = 0.05  # of the least squared error: so much farther, from both gradients of the server, is farther
CLEAR = 2.0  # times the squared error of the server's own gradient, from which on it is clear that zero is wrong


def weigh(errors: Tensor, before: list[Tensor], repeated: float, filled: float = 1.0) -> Tensor:
    """The weights [n + 2] of the workers, the choice and the server, from the errors [n + 3, k] of all columns.

    `before` are the weights of the last step [n + 2], in one or more versions. `repeated` is the share of the server's
    noise that is the same at every step. `filled` is the part of the memory that has steps, above 0: until it is 1,
    the means are noisier.
    """
    return _Columns(errors, repeated, filled).weights(before)[:-1]


class _Columns:
    """All columns of a step. Weights are [n + 3], with that of zero, in float64."""

    def __init__(self, errors: Tensor, repeated: float, filled: float) -> None:
        self.n = len(errors) - 3
        self.mixtures = Mixtures(errors)
        self.columns, self.g = errors - errors[-1], -errors[-1]  # relative to zero
        self.lengths, self.along = self.columns.norm(dim=1), self.columns @ self.g
        self.place = torch.arange(len(errors), device=errors.device)
        self.long = self.lengths > SHORT * self.lengths[-2]
        self.workers = self.long & (self.place < self.n)
        self.alone = (self.place == self.n + 1).double()  # all for the server's own gradient
        self.own, self.zero = self.mixtures.error(self.alone), float(self.g.square().sum())
        self.clear = self.zero >= CLEAR * self.own
        self.fitted = FITTED * repeated
        self.about = 1 + min(MARGIN, self.fitted)
        self.agreed = AGREED / filled

    def weights(self, before: list[Tensor]) -> Tensor:
        """Those of the workers, if they help; else with the server.

        If the workers that had weights are all absent, the own gradient stands in for them. But if it is clear that
        zero is wrong, then it is also clear who is good, and the weights are found anew.
        """
        if not before[0].any() and not self.clear:
            return self.alone
        found = self.of_workers(before) if bool(self.workers.any()) else None
        return self.with_the_server() if found is None else found

    def of_workers(self, before: list[Tensor]) -> Tensor | None:
        """Those of the last step while they have about the least error of workers, else new ones; None if none help.

        New ones are equal for as many workers as have, together, about the least error; if there are none, those with
        the least. The last ones are not kept if the choice or the server had a part, or if it is clear who is good.
        """
        nearest = self._clean(self.mixtures.nearest(self.workers))
        nearest = nearest / nearest.sum()
        proven = not before[0][self.n :].any()
        helps = self._helpful(proven)
        for last in before if proven and not self.clear else []:
            kept = torch.where(self.workers, torch.cat([last, last.new_zeros(1)]), 0)
            kept = kept / kept.sum()  # NaN if none of those is there
            if self._about_as_near(kept, nearest) and helps(kept):
                return kept
        anew = self._equal(nearest)
        return anew if helps(anew) else None

    def with_the_server(self) -> Tensor:
        """All for the own gradient, if with zero it has about the least error of all; else the nearest mixture of all.

        Zero is nearer to g than a noisy gradient, but only slower. So what zero gets is for the others, until the
        mixture is as long as the own gradient.
        """
        found, shorter = self.mixtures.nearest(self.place >= 0), self.mixtures.nearest(self.place > self.n)
        if self.mixtures.error(shorter) <= self.about * self.mixtures.error(found):
            return self.alone
        found = self._clean(found)
        found = found if found.any() else self.alone
        longer = (self.lengths[-2] / (found @ self.columns).norm()).nan_to_num(1).clamp(min=1)
        return found * torch.minimum(longer, 1 / found.sum())

    def _equal(self, nearest: Tensor) -> Tensor:
        """Equal weights for as many workers as are together about as near as the nearest; if none are, the nearest."""
        least = self.mixtures.error(nearest)
        for limit in (self.about, min(self.about, 1 + self.agreed)):
            found = self.mixtures.even(self.workers, limit * least)
            if found is not None and self._about_as_near(found, nearest):
                return found
        return nearest

    def _about_as_near(self, weights: Tensor, nearest: Tensor) -> bool:
        """Whether weights of workers are about as near as the nearest, which fits the noise of g, but not that of o."""
        least = self.mixtures.error(nearest)
        farther = self.mixtures.error(weights) - least
        from_own = self.mixtures.error(weights - self.alone) - self.mixtures.error(nearest - self.alone)
        return farther <= (self.about - 1) * least and min(farther, from_own) <= self.agreed * least

    def _helpful(self, proven: bool) -> Callable[[Tensor], bool]:
        """Whether weights of workers help, which may be `proven`: only workers had weights before.

        They are not much farther from g than with the own gradient, than it alone, or, unless proven, than zero. And
        they go some way along g: workers that send noise are about as near as zero. The server's noise is held against
        proven workers less, the more of it repeats: with few samples, its two gradients may agree by chance for long.
        """
        margin = max(MARGIN, self.fitted) if proven and not self.clear else MARGIN
        # Equal weights may be farther than the nearest of workers, and these by as much than the nearest of all.
        most = max(1 + self.fitted, min((1 + self.fitted) ** 2, 1 + MARGIN))
        least = most * self.mixtures.error(self.mixtures.nearest(self.place <= self.n + 1))
        farthest = min(least, (1 + margin) * self.own, math.inf if proven else (1 + margin) * self.zero)
        reach = self.lengths[-2] * self.g.norm()
        some_way = MARGIN * torch.maximum(self.along[-2] - margin * reach, -MARGIN * reach)

        def helps(weights: Tensor) -> bool:
            return bool(weights @ self.along >= some_way) and self.mixtures.error(weights) <= farthest

        return helps

    def _clean(self, weights: Tensor) -> Tensor:
        return torch.where((weights < LEAST / max(1, self.n)) | ~self.long, 0, weights)
