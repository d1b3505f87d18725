"""What every fault shares: where it can act, and on whom, when and how often it does.

A fault acts on the batch before the gradient is computed (poisoned data), on the gradients before they are sent (a
bug, a flipped bit, malice), or on the replies (a crash, silence, nonsense). The last two are handed what all workers
computed, since faulty workers may know of each other and of the rest.

Shapes: k faulty workers, m workers in all, d parameters, n samples.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from zeno.faults.scene import Scene
from zeno.problem.dataset import Batch
from zeno.workers.reply import Reply

if TYPE_CHECKING:
    from zeno.faults.together import Together


SCHEDULE = {
    "on": "How many workers it takes; by default its share of the run's faulty ones.",
    "start": "The first step at which it acts.",
    "end": "The first step at which it is over, and its workers are mended; by default never.",
    "chance": "That it strikes, for each of its workers at each step.",
    "redraw": "Takes other workers at every step.",
}
"""The parameters that every fault has."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong on a worker. Override one of the three; as it stands, nothing does.

    A subclass that checks parameters of its own calls `super().__post_init__()` as well.
    """

    on: int | None = field(default=None, kw_only=True)
    start: int = field(default=0, kw_only=True)
    end: int | None = field(default=None, kw_only=True)
    chance: float = field(default=1.0, kw_only=True)
    redraw: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.on is not None:
            check_count(self, "on", self.on, 1)
        check_count(self, "start", self.start, 0)
        if self.end is not None:
            check_count(self, "end", self.end, self.start + 1)
        check_share(self, "chance", self.chance)
        if not isinstance(self.redraw, bool):
            raise ValueError(f"{type(self).__name__} needs redraw as True or False. Found redraw={self.redraw!r}.")

    def __add__(self, other: "Fault") -> "Together":
        """Both in one run, each on workers of its own."""
        from zeno.faults.together import together  # which needs this class

        return together(self, other)

    def needs(self, workers: Sequence[int], correct: Sequence[int]) -> Sequence[int]:
        """Those of its `workers` whose own gradients decide what it makes them send; by default all of them.

        Nobody computes the others': their rows of `scene.own` are NaN. `correct` are the workers without any fault. Of
        both, those from which nothing came are left out, and it is asked again.
        """
        return workers

    def on_batch(self, batch: Batch, classes: int | None, rng: np.random.Generator) -> Batch:
        """What the faulty worker computes its gradient from, in place of `batch`."""
        return batch

    def on_gradients(self, scene: Scene) -> Tensor:
        """What the faulty workers send [k, d], in place of `scene.own`. Never called with k = 0."""
        return scene.own

    def on_replies(self, replies: Sequence[Reply], scene: Scene) -> Iterable[Reply]:
        """What comes from the faulty workers, in place of `replies`; some of these may have no numbers to begin with.

        As it stands, it puts what `on_gradients` returns into those of `scene.workers`.
        """
        if not scene.workers:
            return replies
        sent = dict(zip(scene.workers, self.on_gradients(scene), strict=True))
        return [replace(r, gradient=sent[r.worker]) if r.worker in sent else r for r in replies]


def check_positive(fault: Fault, name: str, value: float) -> None:
    """Refuses a parameter that is not a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise _refusal(fault, name, "a finite number above 0", value)


def check_count(fault: Fault, name: str, value: int, least: int) -> None:
    """Refuses a parameter that is not a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise _refusal(fault, name, f"a whole number of at least {least}", value)


def check_share(fault: Fault, name: str, value: float) -> None:
    """Refuses a parameter that is not above 0 and at most 1."""
    if not 0 < value <= 1:
        raise _refusal(fault, name, "a number above 0 and at most 1", value)


def check_classes(fault: Fault, classes: int | None) -> int:
    """The number of classes, for a fault that cannot do without."""
    if classes is None:
        raise ValueError(f"{type(fault).__name__} needs a task with class labels. Found targets that are not classes.")
    return classes


def _refusal(fault: Fault, name: str, needed: str, value: object) -> ValueError:
    return ValueError(f"{type(fault).__name__} needs {name} as {needed}. Found {name}={value!r}.")
