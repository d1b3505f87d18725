"""The base class of faults: what a fault sees, what it changes, and on which workers, when and how often it acts.

A fault changes the batch before the gradient is computed (poisoned data), the gradients before they are sent (a bug, a
flipped bit, an attack), or the replies (a crash, no reply, a malformed one). The last two see what all workers
computed, since faulty workers may collude and know the others.

Shapes: k faulty workers, m workers in all, d parameters, n samples.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zeno.faults.parameters import Share, Switch, check
from zeno.problem.dataset import Batch
from zeno.rules.parameters import Count, PositiveCount, Requirement
from zeno.workers.reply import NO_REPLY, Reply

SCHEDULE = {
    "on": "Number of workers; by default its share of the run's faulty workers.",
    "start": "First step at which it acts.",
    "end": "First step at which it no longer acts; by default it never ends.",
    "chance": "Probability that it acts, for each of its workers at each step.",
    "redraw": "Whether to draw new workers at every step.",
}
"""The parameters that every fault has."""


@dataclass(eq=False)
class Scene:
    """One step as the workers of one fault see it, after all gradients were computed. Read-only, except `memory`.

    `memory` is passed on to the next step and saved in checkpoints: its keys are text, its values tensors, numbers, or
    lists of them.
    """

    step: int
    workers: Sequence[int]  # k of them: those of this fault that have a gradient, in order
    own: Tensor  # [k, d] their gradients; NaN for those that the fault does not need
    correct: Tensor  # the gradients of the workers without a fault at this step, in order of the workers
    rng: np.random.Generator
    size: int  # m
    others: Mapping[int, Tensor] = field(default_factory=dict)  # worker -> [d]: sent by those with no or another fault
    aggregate: Callable[[Tensor], Tensor | None] | None = None
    """The rule in use: candidates [m, d] -> update [d], or None where it would skip the step. None if it is unknown."""
    memory: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def computed(self) -> Tensor:
        """All gradients that were computed correctly, by workers with this fault and by those without any.

        Colluding faults hide among these. A single correct worker's gradient alone would have a deviation of 0.
        """
        return torch.cat([self.own, self.correct])

    @cached_property
    def mu(self) -> Tensor:  # [d]
        """The mean of all gradients that were computed correctly."""
        return self.computed.mean(dim=0)

    @cached_property
    def sigma(self) -> Tensor:  # [d]
        """Their standard deviation in each coordinate, of the population: 0 for a single gradient."""
        return self.computed.std(dim=0, unbiased=False)

    def all_send(self, vector: Tensor) -> Tensor:  # [k, d]
        """The same vector [d] from each faulty worker."""
        return vector.expand_as(self.own)

    def candidates(self, sent: Tensor) -> Tensor:  # [m, d]
        """The candidates of the server if the faulty workers send these [k, d]; NaN for workers that send nothing."""
        rows = sent.new_full((self.size, sent.shape[1]), torch.nan)
        for worker, gradient in self.others.items():
            rows[worker] = gradient
        rows[list(self.workers)] = sent
        return rows


@dataclass(frozen=True)
class Fault:
    """What is wrong with a worker. Subclasses override one of `on_batch`, `on_gradients` and `on_replies`.

    A subclass with its own `__post_init__` calls `super().__post_init__()`.
    """

    on: PositiveCount | None = field(default=None, kw_only=True)
    start: Count = field(default=0, kw_only=True)
    end: PositiveCount | None = field(default=None, kw_only=True)
    chance: Share = field(default=1.0, kw_only=True)
    redraw: Switch = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        for f in fields(self):
            check(self, f.name, vars(self)[f.name], f.type)
        later = Requirement(f"a whole number of at least {self.start + 1}", lambda end: end is None or end > self.start)
        check(self, "end", self.end, later)

    def __add__(self, other: "Fault") -> "Together":
        """Both faults in one run, each on its own workers."""
        return together(self, other)

    def needs(self, workers: Sequence[int], correct: Sequence[int]) -> Sequence[int]:
        """Those of its `workers` whose gradients it uses; by default all of them.

        Nobody computes the others: their rows of `scene.own` are NaN. `correct` are the workers without a fault. Both
        lists leave out workers that sent no gradient; the method is called again when one did not.
        """
        return workers

    def on_batch(self, batch: Batch, classes: int | None, rng: np.random.Generator) -> Batch:
        """The batch that the faulty worker computes its gradient from."""
        return batch

    def on_gradients(self, scene: Scene) -> Tensor:
        """What the faulty workers send [k, d], instead of `scene.own`. Never called with k = 0."""
        return scene.own

    def on_replies(self, replies: Sequence[Reply], scene: Scene) -> Iterable[Reply]:
        """The replies of the faulty workers, instead of `replies`, some of which may have no gradient.

        By default, the gradients of `scene.workers` are replaced by `on_gradients(scene)`.
        """
        if not scene.workers:
            return replies
        sent = dict(zip(scene.workers, self.on_gradients(scene), strict=True))
        return [replace(r, gradient=sent[r.worker]) if r.worker in sent else r for r in replies]

    def on_arrival(self, reply: Reply, scene: Scene) -> Reply:
        """The reply of one faulty worker in an asynchronous run; by default, `on_replies` of this reply alone.

        The gradients of the scene are the last ones of every worker, this one's included, of whatever version.
        """
        sent = [one for one in self.on_replies([reply], scene) if one.worker == reply.worker and not one.late]
        return sent[0] if sent else Reply(reply.worker, reply.step, None, NO_REPLY)

    def on_delay(self, delay: float) -> float:
        """The time that the faulty worker takes for a reply in a simulated asynchronous run, instead of `delay`."""
        return delay


class IndependentFault(Fault):
    """A fault that does not depend on the gradients of its workers, so that nobody computes them."""

    def needs(self, workers: Sequence[int], correct: Sequence[int]) -> Sequence[int]:
        return ()


@dataclass(frozen=True)
class Together(Fault):
    """Several faults, each on its own workers: `label_flip(on=8)+crash(on=4, start=100)`."""

    parts: tuple[Fault, ...]

    def __post_init__(self) -> None:
        if len(self.parts) < 2 or any(isinstance(part, Together) for part in self.parts):
            raise ValueError(f"Together needs two or more faults, none of them a Together. Found {self.parts!r}.")
        changed = [f.name for f in fields(Fault) if vars(self)[f.name] != f.default]
        if changed:
            raise ValueError(f"Together takes no {changed[0]}. Give it to one of the parts.")


def together(*faults: Fault) -> Together:
    """All parts of these faults, in order."""
    for fault in faults:
        if not isinstance(fault, Fault):
            raise TypeError(f"Only faults can be added, such as LabelFlip() + Crash(). Found {fault!r}.")
    return Together(tuple(part for fault in faults for part in parts_of(fault)))


def parts_of(fault: Fault) -> Sequence[Fault]:
    """The parts of a Together; any other fault is its only part."""
    return fault.parts if isinstance(fault, Together) else (fault,)


def check_classes(fault: Fault, classes: int | None) -> int:
    """The number of classes, for a fault that needs it."""
    if classes is None:
        raise ValueError(f"{type(fault).__name__} needs a task with class labels. Found targets that are not classes.")
    return classes
