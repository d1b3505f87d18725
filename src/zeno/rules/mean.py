"""The average of all candidates: the fastest rule, and one that a single faulty worker can steer."""

from dataclasses import dataclass

from zeno.rules.linalg.passes import all_finite
from zeno.rules.rule import Aggregate, Oracle, Rows, Rule


@dataclass(frozen=True)
class Mean(Rule):
    """Average of all candidates; tolerates no faulty worker, only a minority without a usable candidate."""

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        result = rows.columnwise("mean")
        return result if all_finite(result.update) else rows.average()  # the sum may overflow where the mean does not
