"""AFLGuard (Fang et al., ACSAC 2022): accept a candidate, as it arrives, if it is near the server's own gradient."""

from dataclasses import dataclass

from zeno.rules.linalg.passes import squared_norms
from zeno.rules.monna import squared_distances_to
from zeno.rules.rule import Aggregate, Oracle, Positive, PositiveCount, Rows, Rule, Samples
from zeno.rules.trusted_gradient import is_due, likeness_to, trusted_gradient


@dataclass(frozen=True)
class AFLGuard(Rule):
    """Average of the candidates u with ||u - v|| <= radius * ||v||, v the server's gradient; for asynchronous runs.

    Tolerates any number of faulty workers. Each candidate is judged by itself, so an asynchronous run with `buffer=1`
    is the published algorithm. The update is zero if no candidate is accepted.
    """

    radius: Positive = 1.5  # lambda in the paper
    every: PositiveCount = 1  # candidates that are judged by one gradient of the server
    batch_size: Samples = 128  # samples for the server's gradient

    def prepare(self, oracle: Oracle, state: object) -> None:
        if is_due(state, self.every):
            oracle.gradient()

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        v, state = trusted_gradient(rows, oracle, state, self.every)
        scores = self.radius * squared_norms(v[None])[0].sqrt() - squared_distances_to(rows, v).sqrt()
        accepted = scores >= 0
        result = rows.weighted_sum(accepted.double() / accepted.sum().clamp(min=1), scores, state)
        return result._replace(likeness=likeness_to(rows, v))
