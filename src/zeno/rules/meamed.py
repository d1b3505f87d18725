"""The mean around the median (Xie, Koyejo and Gupta, 2018)."""

from dataclasses import dataclass

from zeno.rules.linalg.sorting_network import Columns
from zeno.rules.rows import OnRows, Rows
from zeno.rules.rule import Aggregate, Descent, check_count, check_majority


@dataclass(frozen=True)
class MeaMed(OnRows):
    """Mean of the m - faulty values nearest the median of each coordinate; bears `faulty` workers, a minority."""

    faulty: int

    def __post_init__(self) -> None:
        check_count(self, "faulty", self.faulty, 0)

    def on_rows(self, rows: Rows, descent: Descent | None, state: object) -> Aggregate:
        check_majority(self, "faulty", self.faulty, rows.size)
        return rows.result(rows.columnwise(lambda: Columns("nearest_median", rows.lowered(self, self.faulty))))
