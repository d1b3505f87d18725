"""Nothing learned."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zeno.faults.fault import Fault
from zeno.faults.scene import Scene


@dataclass(frozen=True)
class Zero(Fault):
    """Sends zeros."""

    def needs(self, workers: Sequence[int], correct: Sequence[int]) -> Sequence[int]:
        return ()

    def on_gradients(self, scene: Scene) -> Tensor:
        return torch.zeros_like(scene.own)
