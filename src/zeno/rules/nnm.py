"""NNM, nearest neighbour mixing (Allouah et al., AISTATS 2023): a pre-aggregator."""

from dataclasses import dataclass

from zeno.rules.rows import Rows
from zeno.rules.rule import check_count, check_majority


@dataclass(frozen=True)
class NNM:
    """Each candidate becomes the mean of the m - faulty nearest to it, itself included."""

    faulty: int

    def __post_init__(self) -> None:
        check_count(self, "faulty", self.faulty, 0)

    def before(self, rows: Rows, state: object) -> tuple[Rows, object]:
        check_majority(self, "faulty", self.faulty, rows.size)
        distances = rows.squared_distances()
        num = rows.n - rows.lowered(self, self.faulty)
        distances.fill_diagonal_(-1)  # itself first, also among equals
        nearest = distances.argsort(dim=1, stable=True)[:, :num]
        return rows.mixed(distances.new_zeros(distances.shape).scatter_(1, nearest, 1 / num)), None
