"""The bases of all rules and pre-aggregators, and all names that one needs to write one.

A rule is a pure function: candidates in, one update out. Row i of the candidates is always worker i. A worker whose
gradient is missing or unusable is a row of NaN. A row with NaN or Inf in any coordinate never moves the update, and
counts as one of the faulty workers that the rule tolerates. If there are more of them, the rule raises `TooFewUsable`:
see `Rule.most_faulty`.

Shapes: m workers, d parameters.
"""

from torch import Tensor

from zeno.rules.aggregate import Aggregate, Oracle, TooFewUsable, checked, likeness_of
from zeno.rules.linalg.geometry import Geometry
from zeno.rules.parameters import Change, Count, NonNegative, Part, Positive, PositiveCount, Rate, Samples, Tolerated
from zeno.rules.rows import Rows
from zeno.rules.selection import keep_lowest

__all__ = ["Aggregate", "Change", "Count", "NonNegative", "Oracle", "Positive", "PositiveCount", "PreAggregator"]
__all__ += ["Rate", "Rows", "Rule", "Samples", "Tolerated", "TooFewUsable", "keep_lowest", "likeness_of"]


class Rule(Part):
    """Combines candidates into one update. Override `aggregate` or `__call__`: each of them uses the other by default.

    `aggregate` gets the usable rows, with methods for distances, norms and averages; `__call__` gets the candidates as
    received. Make a rule a frozen dataclass: that gives it the repr, equality and pickling that records and clusters
    need. A rule holds no state: what it wants to remember, it returns as `Aggregate.state`.
    """

    @property
    def scores_on_arrival(self) -> bool:
        """Whether candidates may be scored before all of them are there.

        True promises that the rule calls `oracle.descents` only with all candidates as received.
        """
        return False

    @property
    def averages(self) -> bool:
        """Whether the update is made of candidates alone, by their weights: the server then checks its size."""
        return True

    def prepare(self, oracle: Oracle, state: object) -> None:
        """Asks the oracle for what no candidate changes, such as the server's own gradient.

        Where workers compute in other processes, the server calls it meanwhile, in another thread. The oracle remembers
        its answers for when the rule asks again.
        """

    def __call__(self, candidates: Tensor, oracle: Oracle | None = None, state: object = None) -> Aggregate:
        """The update from all candidates [m, d]; a row of NaN is one without a usable gradient."""
        return self.aggregate(Rows(Geometry(candidates), self), oracle, state)

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        """The update from the usable rows."""
        if type(self).__call__ is Rule.__call__:
            raise TypeError(
                f"{type(self).__name__} has no way to combine candidates. Override `aggregate(rows, oracle, state)` or "
                "`__call__(candidates, oracle=None, state=None)`; both return a zeno.Aggregate."
            )
        return rows.in_terms_of_workers(checked(self(rows.tensor(), oracle, state), self, rows.n, rows.d))


class PreAggregator(Part):
    """Replaces the rows by others, for the next part of a chain."""

    def most_faulty(self, workers: int) -> int:
        """The number it states. Otherwise the rule after it decides, and one usable candidate is enough."""
        return workers - 1 if self.tolerates is None else self.tolerates

    def before(self, rows: Rows, state: object) -> tuple[Rows, object]:
        """The rows for the next part, and the state that it gets back at the next step."""
        raise NotImplementedError(f"{type(self).__name__} needs to override `before(rows, state)`.")
