"""The average of all candidates: the fastest rule, and one that a single faulty worker can steer."""

from dataclasses import dataclass

from torch import Tensor

from zeno.rules.rule import Aggregate, Descent, TooFewUsable, average, usable_rows


@dataclass(frozen=True)
class Mean:
    """Average of all candidates; bears no faulty worker."""

    def __call__(self, candidates: Tensor, descent: Descent | None = None, state: object = None) -> Aggregate:
        kept = usable_rows(candidates)
        if not kept.any():
            raise TooFewUsable(self, 1, kept)
        return Aggregate(average(candidates[kept]), None, kept)
