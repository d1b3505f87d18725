"""What every rule shares: how it is called, what it returns, and how bad rows are set aside.

A rule is a pure function of the candidates, one row for each worker. Row i is always worker i: a worker
that did not answer, or answered with something unusable, is a row of NaN. A row with any number that is not
finite never moves the update and counts as one of the faulty that the rule was told to bear; when there are
more of them than that, no honest update can be made, and the rule says so by raising `TooFewUsable`.

Shapes: m workers, d parameters.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor

Descent = Callable[[Tensor], Tensor]
"""Candidates [m, d] -> [m], by how much each of them lowers the loss on samples of the server's own.

A rule may also ask it for `gradient()` [d], the server's own gradient on these samples, for `lr`, the step that was
tried, and for `parts(candidates, samples)` [m, p], the descents on that many fresh samples, in p equal parts;
`zeno.Problem.at` has the first two.
"""


class Aggregate(NamedTuple):
    """What a rule made of the candidates."""

    update: Tensor  # [d]
    scores: Tensor | None  # [m], higher is more trusted; None where the rule does not rank
    kept: Tensor  # [m] bool: the candidates that the update was made from
    state: object = None  # what the rule wants back at the next step; of a checkpoint, its tensors are on the CPU
    standing: Tensor | None = None  # [m], higher is more trusted, by many steps; None where the rule remembers none
    samples: int | None = None  # of the server's own that candidates were scored on, where the rule chose it
    judged: Tensor | None = None  # [m] bool: the candidates that the rule looked at; None: all


class Rule(Protocol):
    """Turns candidates into one update. Ours are frozen dataclasses: free repr, equality and pickling.

    A rule that has `batch_size` is given a descent on that many samples of the server's own; others on 4.
    """

    def __call__(self, candidates: Tensor, descent: Descent | None = None, state: object = None) -> Aggregate: ...


class TooFewUsable(ValueError):  # noqa: N818
    """More candidates are unusable than the rule was told to bear: the step is better skipped."""

    def __init__(self, rule: object, needed: int, usable: Tensor) -> None:
        super().__init__(f"{rule} needs {needed} usable candidates. Found {int(usable.sum())} of {len(usable)}.")

    @classmethod
    def said(cls, text: str) -> "TooFewUsable":
        """What was raised elsewhere, with what it said there."""
        error = cls.__new__(cls)
        error.args = (text,)
        return error


def bears(rule: object) -> int | None:
    """How many unusable candidates a rule was told to bear; None where it was told nothing."""
    rule = getattr(rule, "rule", rule)  # the one at the end of a chain
    told = getattr(rule, "trim", getattr(rule, "faulty", None))
    return told if isinstance(told, int) else None


def check_count(rule: object, name: str, value: object, least: int) -> None:
    """Refuses a parameter that is not a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(
            f"{type(rule).__name__} needs {name} as a whole number of at least {least}. Found {name}={value!r}."
        )


def check_positive(rule: object, name: str, value: object) -> None:
    """Refuses a parameter that is not a finite number above 0."""
    try:
        fits = not isinstance(value, bool) and isinstance(value, int | float) and 0 < float(value) < float("inf")
    except OverflowError:
        fits = False
    if not fits:
        raise ValueError(f"{type(rule).__name__} needs {name} as a finite number above 0. Found {name}={value!r}.")


def check_majority(rule: object, name: str, value: int, found: int) -> None:
    """Refuses as many faulty rows as good ones, or more."""
    if 2 * value >= found:
        raise ValueError(
            f"{type(rule).__name__} needs more than 2 * {name} candidates. Found {found} with {name}={value}. "
            f"Lower {name} or add workers."
        )


def check_more(rule: object, name: str, value: int, found: int) -> None:
    """Refuses to give up all candidates."""
    if value >= found:
        raise ValueError(
            f"{type(rule).__name__} needs more than {name} candidates. Found {found} with {name}={value}. "
            f"Lower {name} or add workers."
        )


def own_gradient(rule: object, descent: Descent | None, d: int) -> Tensor:
    """The server's own gradient [d], for the rules that trust it."""
    gradient = getattr(descent, "gradient", None)
    if gradient is None:
        raise ValueError(
            f"{rule} needs the server's own gradient. Found {'no descent' if descent is None else repr(descent)}. "
            "Pass descent=problem.at(params, lr, batch), or any object with a function gradient() that returns [d]."
        )
    own: Tensor = gradient().detach()
    if own.shape != (d,):
        raise ValueError(f"{rule} needs a gradient of {d} numbers. Found shape {list(own.shape)}.")
    if not bool(own.isfinite().all()):
        raise ValueError(f"{rule} needs a finite gradient of the server's own. Found NaN or an infinity in it.")
    return own
