"""The median of each coordinate (Yin et al., ICML 2018)."""

from dataclasses import dataclass

from zeno.rules.rule import Aggregate, Oracle, Rows, Rule


@dataclass(frozen=True)
class Median(Rule):
    """Median of each coordinate, the mean of the two middle values if m is even; tolerates a faulty minority."""

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        return rows.columnwise("median")
