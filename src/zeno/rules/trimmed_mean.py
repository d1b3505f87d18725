"""The trimmed mean of each coordinate (Yin et al., ICML 2018)."""

from dataclasses import dataclass

from zeno.rules.rule import Aggregate, Oracle, Rows, Rule, Tolerated


@dataclass(frozen=True)
class TrimmedMean(Rule):
    """Mean of each coordinate without its `trim` largest and smallest values; tolerates `trim` faulty workers."""

    trim: Tolerated

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        rows.require(2 * self.trim + 1, "more than 2 * trim", trim=self.trim)
        return rows.columnwise("trimmed_mean", self.trim)
