"""The median of each coordinate (Yin et al., ICML 2018)."""

from dataclasses import dataclass

from zeno.rules.linalg.sorting_network import Columns
from zeno.rules.rows import OnRows, Rows
from zeno.rules.rule import Aggregate, Descent


@dataclass(frozen=True)
class Median(OnRows):
    """Median of each coordinate, the mean of the two middle values for an even number; bears a faulty minority."""

    def on_rows(self, rows: Rows, descent: Descent | None, state: object) -> Aggregate:
        def columns() -> Columns:
            rows.lowered(self, rows.m - 1)
            return Columns("median")

        return rows.result(rows.columnwise(columns))
