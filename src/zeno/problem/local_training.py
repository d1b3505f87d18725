"""Local training: what a party does with the parameters between two rounds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from zeno.problem.dataset import Batch
from zeno.problem.nested import NestedBatch

if TYPE_CHECKING:
    from zeno.problem.problem import Problem

Part = TypeVar("Part")


@dataclass(frozen=True)
class LocalTraining:
    """`steps` of plain SGD with the learning rate `lr`, each on another batch.

    Workers that train by themselves send displacements x - x_i instead of gradients. A displacement has another length
    and, after many steps, another direction than a gradient. So whoever compares the two has to train as well.
    """

    steps: int = 10
    lr: float = 0.01

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.lr < float("inf"):
            raise ValueError(
                "Local training needs at least one step and a positive learning rate. "
                f"Found steps={self.steps} and lr={self.lr}."
            )

    def displacement(self, problem: "Problem", batch: Batch | NestedBatch) -> Tensor:
        """x - x' [d], from the problem's parameters x to x' after the steps, each on its part of the batch.

        The problem is at x again afterwards.
        """
        x = problem.flat.clone()

        def gradient(at: Tensor, part: Batch | NestedBatch) -> Tensor:
            problem.load(at)
            return problem.gradient_here(part)

        try:
            return summed(gradient, x, self.parts(batch), self.lr) * self.lr
        finally:
            problem.load(x)

    def parts(self, batch: Batch | NestedBatch) -> list[Batch | NestedBatch]:
        """The batch of each step."""
        size = batch.size // self.steps
        return [batch.cut(slice(i * size, (i + 1) * size)) for i in range(self.steps)]


def summed(gradient: Callable[[Tensor, Part], Tensor], x: Tensor, parts: Sequence[Part], lr: float) -> Tensor:
    """The sum u [d] of the gradients of steps of plain SGD from x, one on each part: they lead to x - lr * u."""
    total = gradient(x, parts[0])
    for part in parts[1:]:
        total += gradient(x - lr * total, part)
    return total
