"""ARC, adaptive robust clipping (Allouah et al., ICLR 2025): a pre-aggregator."""

from dataclasses import dataclass

import torch

from zeno.rules.rule import PreAggregator, Rows, Tolerated


@dataclass(frozen=True)
class ARC(PreAggregator):
    """The floor(2 (faulty / m) (m - faulty)) longest candidates are scaled down to the next norm."""

    faulty: Tolerated

    def before(self, rows: Rows, state: object) -> tuple[Rows, object]:
        rows.require(2 * self.faulty + 1, "more than 2 * faulty", faulty=self.faulty)
        norms = rows.squared_norms().sqrt()
        n, faulty = rows.n, rows.remaining(self.faulty)
        num = 2 * faulty * (n - faulty) // n
        longest_left = norms.sort(descending=True).values[num]
        return rows.mixtures(torch.diag(torch.where(norms > longest_left, longest_left / norms, 1))), None
