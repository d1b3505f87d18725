"""Workers by name, which may join and leave between steps.

Every name has a number, in the order in which the names first appeared, and keeps it. A rule gets the candidates of
the workers that are there, and the rows of its memory that belong to them. So a worker that left does not count as one
of the faulty workers that the rule tolerates, and what the rule knows about it is there when it comes back.

Shapes: m workers, n of them there.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from zeno.records.names import checked_name
from zeno.rules.rule import Aggregate, Rule


class Members(NamedTuple):
    """The workers that are there at a step, among all that ever were."""

    there: list[int]  # [n] the number of each, in the order of their candidates
    names: list[str]  # [m] of all
    joined: list[str]  # those that are new, the last of the names

    @property
    def absent(self) -> list[int]:
        return sorted(set(range(len(self.names))).difference(self.there))

    def state_of(self, rule: Rule, state: object) -> object:
        """What the rule remembers, of the workers that are there."""
        return rule.for_workers(state, lambda rows, start: self._everyone(rows, start)[self.there])

    def in_terms_of_everyone(self, rule: Rule, found: Aggregate, before: object) -> Aggregate:
        """An aggregate of n candidates as one of m workers; the absent ones keep what the rule remembered `before`."""
        remembered: list[Tensor] = []

        def note(rows: Tensor, start: float) -> Tensor:
            remembered.append(self._everyone(rows, start))
            return rows

        def put(rows: Tensor, start: float) -> Tensor:
            everyone = remembered.pop(0).to(rows) if remembered else self._everyone(rows[:0], start)
            everyone[self.there] = rows
            return everyone

        scores = None if found.scores is None else put(found.scores, -torch.inf)
        weights = put(found.weights, 0.0)
        likeness = None if found.likeness is None else put(found.likeness.T, torch.nan).T
        rule.for_workers(before, note)
        state = rule.for_workers(found.state, put)
        return found._replace(weights=weights, scores=scores, likeness=likeness, state=state)

    def _everyone(self, rows: Tensor, start: float) -> Tensor:
        """A new tensor [m, ...]: the rows of the first workers, and those of the others, which are new."""
        return torch.cat([rows, rows.new_full((len(self.names) - len(rows), *rows.shape[1:]), start)])


def members(found: Mapping[str, object], names: Sequence[str], parameters: Collection[str]) -> Members:
    """Who is there, from the keys of a mapping and the names so far. Raises for mistakes by the caller."""
    if not found:
        raise ValueError("A Server needs at least one worker. Found no gradients.")
    there = [checked_name(name) for name in found]
    if there[0] not in names and set(there) <= set(parameters):
        raise ValueError(
            "A Server needs gradients by the name of the worker, or as a list. Found a mapping by the names of "
            f"parameters, such as {there[0]!r}. Pass it as the entry of its worker."
        )
    known = set(names)
    joined = [name for name in there if name not in known]
    everyone = [*names, *joined]
    numbers = {name: number for number, name in enumerate(everyone)}
    return Members([numbers[name] for name in there], everyone, joined)
