"""NNM, nearest neighbour mixing (Allouah et al., AISTATS 2023): a pre-aggregator."""

from dataclasses import dataclass

from zeno.rules.rule import PreAggregator, Rows, Tolerated


@dataclass(frozen=True)
class NNM(PreAggregator):
    """Each candidate becomes the mean of the m - faulty nearest to it, itself included."""

    faulty: Tolerated

    def before(self, rows: Rows, state: object) -> tuple[Rows, object]:
        rows.require(2 * self.faulty + 1, "more than 2 * faulty", faulty=self.faulty)
        distances = rows.squared_distances()
        num = rows.n - rows.remaining(self.faulty)
        distances.fill_diagonal_(-1)  # itself first, also among equals
        nearest = distances.argsort(dim=1, stable=True)[:, :num]
        return rows.mixtures(distances.new_zeros(distances.shape).scatter_(1, nearest, 1 / num)), None
