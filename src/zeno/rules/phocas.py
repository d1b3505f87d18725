"""Phocas (Xie, Koyejo and Gupta, 2018): the mean around the trimmed mean."""

from dataclasses import dataclass

from zeno.rules.linalg.sorting_network import Columns
from zeno.rules.rows import OnRows, Rows
from zeno.rules.rule import Aggregate, Descent, check_count, check_majority


@dataclass(frozen=True)
class Phocas(OnRows):
    """Mean of the m - trim values nearest the trimmed mean of each coordinate; bears `trim` workers, a minority."""

    trim: int

    def __post_init__(self) -> None:
        check_count(self, "trim", self.trim, 0)

    def on_rows(self, rows: Rows, descent: Descent | None, state: object) -> Aggregate:
        check_majority(self, "trim", self.trim, rows.size)
        return rows.result(rows.columnwise(lambda: Columns("nearest_trimmed_mean", rows.lowered(self, self.trim))))
