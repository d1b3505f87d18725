"""The mean around the median (Xie, Koyejo and Gupta, 2018)."""

from dataclasses import dataclass

from zeno.rules.rule import Aggregate, Oracle, Rows, Rule, Tolerated


@dataclass(frozen=True)
class MeaMed(Rule):
    """Mean of the m - faulty values nearest the median of each coordinate; tolerates a faulty minority."""

    faulty: Tolerated

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        rows.require(2 * self.faulty + 1, "more than 2 * faulty", faulty=self.faulty)
        return rows.columnwise("nearest_median", self.faulty)
