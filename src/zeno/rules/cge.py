"""CGE, comparative gradient elimination (Gupta and Vaidya, 2019): large gradients are not believed."""

from dataclasses import dataclass

from zeno.rules.rows import OnRows, Rows, keep_lowest
from zeno.rules.rule import Aggregate, Descent, check_count, check_more


@dataclass(frozen=True)
class CGE(OnRows):
    """Average of the m - faulty candidates of smallest norm; bears `faulty` workers that send too much."""

    faulty: int

    def __post_init__(self) -> None:
        check_count(self, "faulty", self.faulty, 0)

    def on_rows(self, rows: Rows, descent: Descent | None, state: object) -> Aggregate:
        check_more(self, "faulty", self.faulty, rows.size)
        norms = rows.squared_norms().sqrt()
        kept = keep_lowest(norms, rows.n - rows.lowered(self, self.faulty))
        return rows.result(rows.average(kept), kept, -norms)
