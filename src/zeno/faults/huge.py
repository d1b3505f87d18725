"""Numbers that drown all others."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zeno.faults.fault import Fault, check_positive
from zeno.faults.scene import Scene


@dataclass(frozen=True)
class Huge(Fault):
    """Sends a number as large as `value` everywhere."""

    value: float = 1e30

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "value", self.value)

    def needs(self, workers: Sequence[int], correct: Sequence[int]) -> Sequence[int]:
        return ()

    def on_gradients(self, scene: Scene) -> Tensor:
        return torch.full_like(scene.own, self.value)
