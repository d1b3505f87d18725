"""CGE, comparative gradient elimination (Gupta and Vaidya, 2019): drop the largest gradients."""

from dataclasses import dataclass

from zeno.rules.rule import Aggregate, Oracle, Rows, Rule, Tolerated, keep_lowest


@dataclass(frozen=True)
class CGE(Rule):
    """Average of the m - faulty candidates of smallest norm; tolerates `faulty` workers that send large gradients."""

    faulty: Tolerated

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        rows.require(self.faulty + 1, "more than faulty", faulty=self.faulty)
        norms = rows.squared_norms().sqrt()
        return rows.average(keep_lowest(norms, rows.n - rows.remaining(self.faulty)), scores=-norms)
