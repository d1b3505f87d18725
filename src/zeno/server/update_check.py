"""The last check before the model moves: is this update one that the rule can have made from its candidates?"""

import math
from collections.abc import Mapping

from zeno.rules.linalg.passes import largest_number
from zeno.rules.rule import Aggregate, Rule, TooFewUsable

ROUNDING = 1.01  # bfloat16 has eight bits


def check_update(rule: Rule, aggregate: Aggregate, largest: Mapping[int, float]) -> None:
    """Raises `TooFewUsable` for an update that is not finite, or larger than its candidates allow.

    `largest` is the largest magnitude in the candidate of each worker. No number of an average, and none that a rule
    chooses for a coordinate, is larger than all numbers of the candidates that were kept. With weights that do not sum
    to 1, it is at most the weighted sum of these magnitudes. The server's own gradient may be larger.
    """
    found = largest_number(aggregate.update)
    if not math.isfinite(found):
        raise TooFewUsable(f"{rule} returned an update with NaN or Inf, which was not applied.")
    if not rule.averages or aggregate.own:
        return
    shares = {worker: weight for worker, weight in enumerate(aggregate.weights.tolist()) if weight}
    if not shares or not shares.keys() <= largest.keys():
        return
    limit = max(*(largest[i] for i in shares), sum(abs(weight) * largest[i] for i, weight in shares.items()))
    if found > ROUNDING * limit:
        raise TooFewUsable(
            f"{rule} returned an update with numbers up to {found:.3g}, which was not applied: its candidates and "
            f"weights allow at most {limit:.3g}. If it does not average, set `averages = False` in the rule."
        )
