"""The average of all candidates: the fastest rule, and one that a single faulty worker can steer."""

from dataclasses import dataclass

from zeno.rules.linalg.passes import all_finite
from zeno.rules.linalg.sorting_network import Columns
from zeno.rules.rows import OnRows, Rows
from zeno.rules.rule import Aggregate, Descent


@dataclass(frozen=True)
class Mean(OnRows):
    """Average of all candidates; bears no faulty worker."""

    def on_rows(self, rows: Rows, descent: Descent | None, state: object) -> Aggregate:
        def columns() -> Columns:
            rows.lowered(self, rows.m - 1)
            return Columns("mean")

        update = rows.columnwise(columns)
        return rows.result(update if all_finite(update) else rows.average())
