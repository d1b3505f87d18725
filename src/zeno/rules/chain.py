"""Rules made of parts: pre-aggregators one after the other, and a rule at the end."""

from collections.abc import Callable
from dataclasses import dataclass

from zeno.rules.aggregate import checked
from zeno.rules.rule import Aggregate, Change, Oracle, PreAggregator, Rows, Rule


@dataclass(frozen=True)
class Chain(Rule):
    """Pre-aggregators, then a rule. Weights and scores are those of the workers whose candidates went in."""

    first: tuple[PreAggregator, ...]
    rule: Rule

    @property
    def parts(self) -> tuple[PreAggregator | Rule, ...]:
        return (*self.first, self.rule)

    @property
    def samples(self) -> int:
        return self.rule.samples

    @property
    def tolerates(self) -> int | None:
        return self.rule.tolerates

    def most_faulty(self, workers: int) -> int:
        return self.rule.most_faulty(workers)

    def first_state(self, secret: Callable[[], int]) -> object:
        return tuple(part.first_state(secret) for part in self.parts)

    def for_workers(self, state: object, change: Change) -> object:
        if not isinstance(state, tuple):
            return state
        return tuple(part.for_workers(one, change) for part, one in zip(self.parts, state, strict=True))

    @property
    def averages(self) -> bool:
        return self.rule.averages

    def prepare(self, oracle: Oracle, state: object) -> None:
        self.rule.prepare(oracle, state[-1] if isinstance(state, tuple) else None)

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        states = list(state) if isinstance(state, tuple) else [None] * len(self.parts)
        if len(states) != len(self.parts):
            raise ValueError(f"A chain of {len(self.parts)} parts needs as many states. Found {len(states)}.")
        for i, part in enumerate(self.first):
            rows, states[i] = part.before(rows.used_by(part), states[i])
        rows = rows.used_by(self.rule)
        rows.require_usable()
        result = checked(self.rule.aggregate(rows, oracle, states[-1]), self.rule, rows.m, rows.d)
        return result._replace(state=(*states[:-1], result.state))


def chain(*parts: PreAggregator | Rule) -> Rule:
    """`chain(NNM(faulty=4), TrimmedMean(trim=4))`: the last part is the rule, the others prepare its rows."""
    first, rule = [], parts[-1] if parts else None
    for part in parts[:-1]:
        if not isinstance(part, PreAggregator):
            raise ValueError(f"A chain needs pre-aggregators such as NNM before its last part. Found {part!r}.")
        first.append(part)
    if not isinstance(rule, Rule):
        raise ValueError(f"A chain needs a rule such as Mean() at its end. Found {rule!r}, which returns no update.")
    if isinstance(rule, Chain):
        return Chain((*first, *rule.first), rule.rule)
    return Chain(tuple(first), rule) if first else rule
