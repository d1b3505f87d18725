"""Phocas (Xie, Koyejo and Gupta, 2018): the mean around the trimmed mean."""

from dataclasses import dataclass

from zeno.rules.rule import Aggregate, Oracle, Rows, Rule, Tolerated


@dataclass(frozen=True)
class Phocas(Rule):
    """Mean of the m - trim values nearest the trimmed mean of each coordinate; tolerates a faulty minority."""

    trim: Tolerated

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        rows.require(2 * self.trim + 1, "more than 2 * trim", trim=self.trim)
        return rows.columnwise("nearest_trimmed_mean", self.trim)
