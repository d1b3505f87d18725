"""ARC, adaptive robust clipping (Allouah et al., ICLR 2025): a pre-aggregator."""

from dataclasses import dataclass

import torch

from zeno.rules.rows import Rows
from zeno.rules.rule import check_count, check_majority


@dataclass(frozen=True)
class ARC:
    """The floor(2 (faulty / m) (m - faulty)) longest candidates are scaled down to the next norm."""

    faulty: int

    def __post_init__(self) -> None:
        check_count(self, "faulty", self.faulty, 0)

    def before(self, rows: Rows, state: object) -> tuple[Rows, object]:
        check_majority(self, "faulty", self.faulty, rows.size)
        norms = rows.squared_norms().sqrt()
        n, faulty = rows.n, rows.lowered(self, self.faulty)
        num = 2 * faulty * (n - faulty) // n
        longest_left = norms.sort(descending=True).values[num]
        return rows.mixed(torch.diag(torch.where(norms > longest_left, longest_left / norms, 1))), None
