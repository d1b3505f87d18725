"""Multi-Krum (Blanchard et al., NeurIPS 2017): the average of the candidates with the densest neighbourhoods."""

from dataclasses import dataclass

from zeno.rules.krum import check_neighbours, lowest, neighbourhoods
from zeno.rules.rows import OnRows, Rows
from zeno.rules.rule import Aggregate, Descent, check_count


@dataclass(frozen=True)
class MultiKrum(OnRows):
    """Average of the `keep` best candidates by Krum's measure, m - faulty unless given; bears as many as Krum."""

    faulty: int
    keep: int | None = None

    def __post_init__(self) -> None:
        check_count(self, "faulty", self.faulty, 0)
        if self.keep is not None:
            check_count(self, "keep", self.keep, 1)

    def on_rows(self, rows: Rows, descent: Descent | None, state: object) -> Aggregate:
        check_neighbours(self, self.faulty, rows.size)
        keep = rows.size - self.faulty if self.keep is None else self.keep
        if keep > rows.size - self.faulty:
            raise ValueError(
                f"MultiKrum needs keep of at most candidates - faulty. Found keep={keep} with {rows.size} candidates "
                f"and faulty={self.faulty}. Lower keep."
            )
        distances = rows.squared_distances()
        sums = neighbourhoods(distances, rows.lowered(self, self.faulty))
        kept = lowest(keep, sums, distances.sum(dim=1))
        return rows.result(rows.average(kept), kept, -sums)
