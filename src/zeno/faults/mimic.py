from collections.abc import Sequence

from torch import Tensor

from zeno.faults.fault import Fault, Scene


class Mimic(Fault):
    """Copies of the first correct worker's gradient, so that its samples count too often (Karimireddy et al. 2022).

    Without a correct worker, each sends its own gradient.
    """

    def needs(self, workers: Sequence[int], correct: Sequence[int]) -> Sequence[int]:
        return () if correct else workers

    def on_gradients(self, scene: Scene) -> Tensor:
        return scene.all_send(scene.correct[0]) if len(scene.correct) else scene.own
