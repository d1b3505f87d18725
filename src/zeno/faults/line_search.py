"""How faults that know the rule find the strength that does most harm: by trying the rule in use."""

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

from torch import Tensor

from zeno.faults.fault import Scene

Line: TypeAlias = Callable[[float], Tensor]  # strength -> what the faulty workers send, [k, d] or [d] from each

STRENGTHS = (0.1, 1.0, 10.0, 100.0)
REFINEMENTS = 7


def over_strengths(lines: Iterable[Line]) -> list[tuple[Line, float]]:
    """Each line at each of the strengths that are tried first."""
    return [(line, strength) for line in lines for strength in STRENGTHS]


def most_harmful(scene: Scene, tries: Iterable[tuple[Line, float]], against: Tensor) -> tuple[Line, float] | None:
    """The line and the strength that move the update farthest against a vector [d]; None if the rule is unknown.

    Harm grows with the strength until the rule rejects what was sent, so the best strength is refined towards the next
    larger one. The rule is called once for each try, and 7 times more.
    """
    aggregate = scene.aggregate
    if aggregate is None or not against.isfinite().all():
        return None
    rows = scene.candidates(scene.own)

    def harm(sent: Tensor) -> float:
        rows[list(scene.workers)] = sent
        update = aggregate(rows) if sent.isfinite().all() else sent.new_full(against.shape, math.nan)
        found = 0.0 if update is None else -float(update.double() @ against.double())
        return found if math.isfinite(found) else -math.inf

    most, line, strength = max(((harm(at(s)), at, s) for at, s in tries), key=lambda found: found[0])
    above = 10 * strength
    for _ in range(REFINEMENTS):
        middle = math.sqrt(strength * above)
        found = harm(line(middle))
        if found > most:
            most, strength = found, middle
        else:
            above = middle
    return line, strength


def worst_strength(scene: Scene, line: Line, against: Tensor, unknown: float) -> float:
    """The most harmful strength on one line; `unknown` if the rule is unknown."""
    found = most_harmful(scene, over_strengths([line]), against)
    return unknown if found is None else found[1]
