"""Local training: what a party does with the parameters between two rounds."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zeno.problem.dataset import Batch
from zeno.problem.nested import NestedBatch

if TYPE_CHECKING:
    from zeno.problem.problem import Problem


@dataclass(frozen=True)
class LocalTraining:
    """`steps` of plain SGD with the learning rate `lr`, each on a batch of its own.

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
        total = torch.zeros_like(x)  # of the gradients
        try:
            for part in self.parts(batch):
                total += problem.gradient_here(part)
                torch.add(x, total, alpha=-self.lr, out=problem.flat)
        finally:
            problem.load(x)
        return total * self.lr

    def parts(self, batch: Batch | NestedBatch) -> list[Batch | NestedBatch]:
        """The batch of each step."""
        size = batch.size // self.steps
        return [batch.cut(slice(i * size, (i + 1) * size)) for i in range(self.steps)]
