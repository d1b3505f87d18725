"""Which workers have which fault at a step."""

from dataclasses import dataclass
from itertools import islice

from zeno.faults.fault import Fault, parts_of
from zeno.problem.dataset import generator


@dataclass(frozen=True)
class Schedule:
    """The faults of a run by worker, as a function of the step.

    Fixed faults take the first workers, in the order of the parts. Redrawn faults share one draw per step among the
    other workers: the paper's changing indices. A worker belongs to its fault also while that does not act.
    """

    fault: Fault
    faulty: int  # workers in all; 0: no fault acts
    workers: int
    seed: int
    redraw: bool = False  # every part, also those with redraw=False

    def __post_init__(self) -> None:
        self.shares()

    def shares(self) -> list[int]:
        """Number of workers of each part: `on`, or an even share of the rest, of which the first parts get one more."""
        parts = parts_of(self.fault)
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
        rng = generator(self.seed, "faulty workers", step=step)
        places = rng.choice(self.workers - num_fixed, size=self.faulty - num_fixed, replace=False)
        fixed, drawn = iter(range(num_fixed)), (num_fixed + int(place) for place in places)
        found = {}
        for part, share, moving in zip(parts, shares, moves, strict=True):
            own = sorted(islice(drawn if moving else fixed, share))
            found.update({worker: part for worker in own if self._acts(part, worker, step)})
        return found

    def _acts(self, fault: Fault, worker: int, step: int) -> bool:
        active = step >= fault.start and (fault.end is None or step < fault.end)
        return active and (fault.chance == 1 or generator(self.seed, "chance", worker, step).random() < fault.chance)
