"""Multi-Krum (Blanchard et al., NeurIPS 2017): the average of the candidates with the densest neighbourhoods."""

from dataclasses import dataclass

from zeno.rules.krum import neighbourhoods
from zeno.rules.rule import Aggregate, Oracle, PositiveCount, Rows, Rule, Tolerated, keep_lowest


@dataclass(frozen=True)
class MultiKrum(Rule):
    """Average of the `keep` candidates with the best Krum scores, m - faulty by default; tolerates as many as Krum."""

    faulty: Tolerated
    keep: PositiveCount | None = None

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        rows.require(2 * self.faulty + 3, "more than 2 * faulty + 2", faulty=self.faulty)
        keep = rows.size - self.faulty if self.keep is None else self.keep
        if keep > rows.size - self.faulty:
            raise ValueError(
                f"MultiKrum needs keep of at most candidates - faulty. Found keep={keep} with {rows.size} candidates "
                f"and faulty={self.faulty}. Lower keep."
            )
        distances = rows.squared_distances()
        sums = neighbourhoods(distances, rows.remaining(self.faulty))
        return rows.average(keep_lowest(sums, keep, ties=distances.sum(dim=1)), scores=-sums)
