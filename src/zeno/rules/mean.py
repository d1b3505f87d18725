"""The average of all candidates: the fastest rule, and one that a single faulty worker can steer."""

from dataclasses import dataclass

from zeno.rules.linalg.passes import all_finite
from zeno.rules.rule import Aggregate, Oracle, PositiveCount, Rows, Rule


@dataclass(frozen=True)
class Mean(Rule):
    """Average of all candidates; tolerates no faulty worker, only workers without a usable candidate.

    `least` is the number of usable candidates that a step needs, by default more than half of the workers.
    """

    least: PositiveCount | None = None

    def most_faulty(self, workers: int) -> int:
        """Faulty here means: without a usable candidate."""
        return super().most_faulty(workers) if self.least is None else workers - self.least

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        result = rows.columnwise("mean")
        return result if all_finite(result.update) else rows.average()  # the sum may overflow where the mean does not
