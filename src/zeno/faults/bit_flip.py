"""Flipped sign bits: the paper's bit-flipping failure."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from zeno.faults.fault import Fault
from zeno.faults.scene import Scene


@dataclass(frozen=True)
class BitFlip(Fault):
    """Flips the sign bit of every number; all faulty workers send the flipped gradient of the first of them."""

    def needs(self, workers: Sequence[int], correct: Sequence[int]) -> Sequence[int]:
        return workers[:1]

    def on_gradients(self, scene: Scene) -> Tensor:
        return scene.all_send(-scene.own[0])
