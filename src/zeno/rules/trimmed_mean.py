"""The trimmed mean of each coordinate (Yin et al., ICML 2018)."""

from dataclasses import dataclass

from zeno.rules.linalg.sorting_network import Columns
from zeno.rules.rows import OnRows, Rows
from zeno.rules.rule import Aggregate, Descent, check_count, check_majority


@dataclass(frozen=True)
class TrimmedMean(OnRows):
    """Mean of each coordinate without its `trim` largest and `trim` smallest values; bears `trim` faulty workers."""

    trim: int

    def __post_init__(self) -> None:
        check_count(self, "trim", self.trim, 0)

    def on_rows(self, rows: Rows, descent: Descent | None, state: object) -> Aggregate:
        check_majority(self, "trim", self.trim, rows.size)
        return rows.result(rows.columnwise(lambda: Columns("trimmed_mean", rows.lowered(self, self.trim))))
