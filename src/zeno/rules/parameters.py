"""Parameters of rules and pre-aggregators, which are checked by their types.

`faulty: Tolerated` must be a whole number of at least 0, and states how many faulty workers the rule tolerates.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, NamedTuple, TypeAlias, get_args

from torch import Tensor

Change: TypeAlias = Callable[[Tensor, float], Tensor]
"""The rows of some workers [m, ...], and the value that a new row starts with -> the rows of other workers."""


class Requirement(NamedTuple):
    """What a parameter must be. `states`: the property of a rule that has its value."""

    text: str
    holds: Callable[[Any], bool]
    states: str | None = None


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


AT_LEAST_0 = Requirement("a whole number of at least 0", lambda value: type(value) is int and value >= 0)
AT_LEAST_1 = Requirement("a whole number of at least 1", lambda value: type(value) is int and value >= 1)

Count = Annotated[int, AT_LEAST_0]
PositiveCount = Annotated[int, AT_LEAST_1]
Tolerated = Annotated[int, AT_LEAST_0._replace(states="tolerates")]
Samples = Annotated[int, AT_LEAST_1._replace(states="samples")]
Positive = Annotated[float, Requirement("a finite number above 0", lambda value: _finite(value) and value > 0)]
NON_NEGATIVE = Requirement("a finite number of at least 0", lambda value: _finite(value) and value >= 0)
NonNegative = Annotated[float, NON_NEGATIVE]
Rate = Annotated[float, Requirement("a number above 0 and at most 1", lambda value: _finite(value) and 0 < value <= 1)]


class Part:
    """A rule or a pre-aggregator: a part of a chain. If it is a dataclass, its parameters are checked."""

    def __init_subclass__(cls) -> None:
        for name in {"samples", "tolerates"} & set(inspect.get_annotations(cls)) - set(vars(cls)):
            # Without a default, the property below would be in the way of the field.
            raise TypeError(f"{cls.__name__} needs a default for {name}, or {name} as a property. Found neither.")

    def __post_init__(self) -> None:
        for name, value, requirement in self._parameters():
            if not requirement.holds(value):
                raise ValueError(f"{type(self).__name__} needs {name} as {requirement.text}. Found {name}={value!r}.")

    @property
    def tolerates(self) -> int | None:
        """How many faulty workers it is built for; None: a share of them, see `most_faulty`."""
        return next((value for _, value, requirement in self._parameters() if requirement.states == "tolerates"), None)

    def most_faulty(self, workers: int) -> int:
        """How many of so many workers may be faulty. If more candidates are unusable, the step is skipped.

        A part that states no number tolerates a minority. If it judges candidates by the server's samples, it tolerates
        all but one.
        """
        if self.tolerates is not None:
            return self.tolerates
        return workers - 1 if self.samples else (workers - 1) // 2

    @property
    def samples(self) -> int:
        """How many of the server's samples it needs per step; 0: none."""
        return next((value for _, value, requirement in self._parameters() if requirement.states == "samples"), 0)

    def first_state(self, secret: Callable[[], int]) -> object:
        """The state before the first step: of a part that draws random numbers, from a number that no worker knows."""
        return None

    def for_workers(self, state: object, change: Change) -> object:
        """The state with `change` applied to every tensor in it that has one row for each worker.

        The server calls it where workers join or leave. A state that has no such rows fits any workers.
        """
        return state

    def _parameters(self) -> Iterator[tuple[str, Any, Requirement]]:
        kind: Any = type(self)
        for f in fields(kind) if is_dataclass(kind) else ():
            value, kinds = vars(self)[f.name], get_args(f.type)
            if value is not None or type(None) not in kinds:
                found = [a for kind in (f.type, *kinds) for a in get_args(kind) if isinstance(a, Requirement)]
                yield from ((f.name, value, requirement) for requirement in found)
