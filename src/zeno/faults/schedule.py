"""Who has which fault at a step."""

from collections.abc import Sequence
from dataclasses import dataclass

from zeno.faults.fault import Fault
from zeno.faults.together import parts_of
from zeno.problem.dataset import generator


@dataclass(frozen=True)
class Schedule:
    """The faults of a run by worker, as a function of the step.

    Faults that stay have the first workers, which also win every tie, in order of the parts. Those that are redrawn
    share one draw at every step among the workers that are left: the paper's changing indices. A worker belongs to its
    fault also while that does not act.
    """

    fault: Fault
    faulty: int  # workers in all; 0: no fault acts
    workers: int
    seed: int
    redraw: bool = False  # every part, whatever it says itself

    def __post_init__(self) -> None:
        self.shares()

    def shares(self) -> list[int]:
        """How many workers each part has: `on`, or an even share of the rest, of which the first parts get one more."""
        parts = parts_of(self.fault)
        if self.faulty == 0:
            return [0] * len(parts)
        taken = sum(part.on or 0 for part in parts)
        without = [part.on for part in parts].count(None)
        if taken > self.faulty or (taken < self.faulty and not without):
            raise ValueError(
                f"A run with faulty={self.faulty} needs faults that take {'at most' if without else 'exactly'} as many "
                f"workers by `on`. Found {taken}. Set faulty={taken}, or change `on`."
            )
        even, more = divmod(self.faulty - taken, max(without, 1))
        rest = iter([even + 1] * more + [even] * (without - more))
        return [next(rest) if part.on is None else part.on for part in parts]

    def __call__(self, step: int) -> dict[int, Fault]:
        if self.faulty == 0:
            return {}
        parts, shares = parts_of(self.fault), self.shares()
        moves = [self.redraw or part.redraw for part in parts]
        num_fixed = sum(share for share, moving in zip(shares, moves, strict=True) if not moving)
        fixed, drawn = iter(range(num_fixed)), iter(self._draw(num_fixed, step))
        found = {}
        for part, share, moving in zip(parts, shares, moves, strict=True):
            own = [next(drawn if moving else fixed) for _ in range(share)]
            found.update({worker: part for worker in sorted(own) if self._strikes(part, worker, step)})
        return found

    def _draw(self, num_fixed: int, step: int) -> Sequence[int]:
        """The workers of all redrawn parts."""
        free, num = self.workers - num_fixed, self.faulty - num_fixed
        places = generator(self.seed, "faulty workers", step=step).choice(free, size=num, replace=False)
        return [num_fixed + int(place) for place in places]

    def _strikes(self, fault: Fault, worker: int, step: int) -> bool:
        if step < fault.start or (fault.end is not None and step >= fault.end):
            return False
        return fault.chance == 1 or generator(self.seed, "chance", worker, step).random() < fault.chance
