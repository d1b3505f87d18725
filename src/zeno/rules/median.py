"""The median of each coordinate (Yin et al., ICML 2018)."""

from dataclasses import dataclass

from torch import Tensor

from zeno.rules.rule import Aggregate, Descent, TooFewUsable, usable_rows


@dataclass(frozen=True)
class Median:
    """Median of each coordinate, the mean of the two middle values for an even number; bears a faulty minority."""

    def __call__(self, candidates: Tensor, descent: Descent | None = None, state: object = None) -> Aggregate:
        kept = usable_rows(candidates)
        if not kept.any():
            raise TooFewUsable(self, 1, kept)
        ordered = candidates[kept].sort(dim=0).values
        lower, upper = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
        return Aggregate(lower / 2 + upper / 2, None, kept)  # halved first: lower + upper may overflow
