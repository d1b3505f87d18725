"""Rules made of parts: pre-aggregators one after the other, and a rule at the end."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from zeno.rules.rows import OnRows, Rows
from zeno.rules.rule import Aggregate, Descent, Rule


@runtime_checkable
class PreAggregator(Protocol):
    """Makes other rows of the rows, for the next part of a chain."""

    def before(self, rows: Rows, state: object) -> tuple[Rows, object]: ...


@dataclass(frozen=True)
class Chain(OnRows):
    """Pre-aggregators, then a rule. Scores and kept are those of the workers whose candidates went in."""

    first: tuple[PreAggregator, ...]
    rule: Rule

    @property
    def parts(self) -> tuple[PreAggregator | Rule, ...]:
        return (*self.first, self.rule)

    @property
    def batch_size(self) -> int:
        """Samples of the server's own that the rule at the end works with."""
        return int(getattr(self.rule, "samples", getattr(self.rule, "batch_size", 1)))

    def on_rows(self, rows: Rows, descent: Descent | None, state: object) -> Aggregate:
        states = list(state) if isinstance(state, tuple) else [None] * len(self.parts)
        if len(states) != len(self.parts):
            raise ValueError(f"A chain of {len(self.parts)} parts needs as many states. Found {len(states)}.")
        for i, part in enumerate(self.first):
            rows, states[i] = part.before(rows, states[i])
        if isinstance(self.rule, OnRows):
            result = self.rule.on_rows(rows, descent, states[-1])
        else:  # a rule of the user's own
            own = self.rule(rows.tensor(), descent, states[-1])
            result = rows.result(own.update, own.kept, own.scores, own.state)
        return result._replace(state=(*states[:-1], result.state))


def chain(*parts: PreAggregator | Rule) -> Rule:
    """`chain(NNM(faulty=4), TrimmedMean(trim=4))`: the rule at the end, on what those before it make of the rows."""
    first, rule = [], parts[-1] if parts else None
    for part in parts[:-1]:
        if not isinstance(part, PreAggregator) or isinstance(part, type):
            raise ValueError(f"A chain needs pre-aggregators such as NNM before its last part. Found {part!r}.")
        first.append(part)
    if not callable(rule) or isinstance(rule, type):
        raise ValueError(f"A chain needs a rule such as Mean() at its end. Found {rule!r}, which makes no update.")
    if isinstance(rule, Chain):
        return Chain((*first, *rule.first), rule.rule)
    return Chain(tuple(first), rule) if first else rule
