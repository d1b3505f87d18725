"""Several faults in one run."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from zeno.faults.fault import Fault


@dataclass(frozen=True)
class Together(Fault):
    """Several faults, each on workers of its own: `label_flip(on=8)+crash(on=4, start=100)`."""

    parts: tuple[Fault, ...]

    def __post_init__(self) -> None:
        if len(self.parts) < 2 or any(isinstance(part, Together) for part in self.parts):
            raise ValueError(f"Together needs two faults or more, none of them together. Found {self.parts!r}.")
        changed = [f.name for f in fields(Fault) if getattr(self, f.name) != f.default]
        if changed:
            raise ValueError(f"Faults together have no {changed[0]} of their own. Give it to one of the parts.")


def together(*faults: Fault) -> Together:
    """All parts of these faults, in order."""
    for fault in faults:
        if not isinstance(fault, Fault):
            raise TypeError(f"Only faults can be put together, such as LabelFlip() + Crash(). Found {fault!r}.")
    return Together(tuple(part for fault in faults for part in parts_of(fault)))


def parts_of(fault: Fault) -> Sequence[Fault]:
    """The faults that this one is made of: itself, unless it is several."""
    return fault.parts if isinstance(fault, Together) else (fault,)
