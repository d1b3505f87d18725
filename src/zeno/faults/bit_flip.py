from collections.abc import Sequence

from torch import Tensor

from zeno.faults.fault import Fault, Scene


class BitFlip(Fault):
    """Flipped sign bits: all faulty workers send minus the gradient of the first of them."""

    def needs(self, workers: Sequence[int], correct: Sequence[int]) -> Sequence[int]:
        return workers[:1]

    def on_gradients(self, scene: Scene) -> Tensor:
        return scene.all_send(-scene.own[0])
