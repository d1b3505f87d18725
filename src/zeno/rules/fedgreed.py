"""FedGreed (Kritharakis et al., 2025): the mean of the best candidates, as many as lower the server's loss."""

from dataclasses import dataclass

import torch

from zeno.rules.rule import Aggregate, Oracle, Rows, Rule, Samples, TooFewUsable, keep_lowest


@dataclass(frozen=True)
class FedGreed(Rule):
    """Mean of the k candidates that lower the server's loss most; k grows while the loss of the mean falls.

    Tolerates any number of faulty workers. The best candidate is kept even if it raises the loss.
    """

    batch_size: Samples = 64

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        oracle = rows.require_oracle(oracle)
        scores = rows.descents(oracle).nan_to_num(-torch.inf, torch.inf, -torch.inf)
        usable = scores > -torch.inf
        if not bool(usable.any()):
            raise TooFewUsable.of(self, 1, (rows.owners & usable[:, None]).any(dim=0))
        best, descent = rows.average(keep_lowest(-scores, 1), scores), float(scores.max())
        for k in range(2, int(usable.sum()) + 1):
            larger = rows.average(keep_lowest(-scores, k), scores)
            descent, last = float(oracle.descents(larger.update[None])), descent
            if not descent > last:
                break
            best = larger
        return best
