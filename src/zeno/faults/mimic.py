"""Nothing wrong with any one gradient, and too many of the same."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from zeno.faults.fault import Fault
from zeno.faults.scene import Scene


@dataclass(frozen=True)
class Mimic(Fault):
    """Sends what the first of the correct workers sent, so that its samples count too often (Karimireddy et al. 2022).

    Where no worker is correct there is nobody to copy, and each sends its own gradient.
    """

    def needs(self, workers: Sequence[int], correct: Sequence[int]) -> Sequence[int]:
        return () if correct else workers

    def on_gradients(self, scene: Scene) -> Tensor:
        return scene.all_send(scene.correct[0]) if len(scene.correct) else scene.own
