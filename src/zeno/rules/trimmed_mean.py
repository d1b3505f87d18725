"""The trimmed mean of each coordinate (Yin et al., ICML 2018)."""

from dataclasses import dataclass

from torch import Tensor

from zeno.rules.rule import Aggregate, Descent, TooFewUsable, average, check_count, usable_rows


@dataclass(frozen=True)
class TrimmedMean:
    """Mean of each coordinate without its `trim` largest and `trim` smallest values; bears `trim` faulty workers."""

    trim: int

    def __post_init__(self) -> None:
        check_count(self, "trim", self.trim, 0)

    def __call__(self, candidates: Tensor, descent: Descent | None = None, state: object = None) -> Aggregate:
        kept = usable_rows(candidates)
        m, num_unusable = len(kept), int((~kept).sum())
        if 2 * self.trim >= m:
            raise ValueError(
                f"TrimmedMean needs more than 2 * trim candidates. Found {m} with trim={self.trim}. "
                "Lower trim or add workers."
            )
        if num_unusable > self.trim:
            raise TooFewUsable(self, m - self.trim, kept)
        trim = self.trim - num_unusable  # an unusable row is one of those that are trimmed
        ordered = candidates[kept].sort(dim=0).values
        return Aggregate(average(ordered[trim : len(ordered) - trim]), None, kept)
