"""A cache that nobody clears."""

from dataclasses import dataclass

import torch
from torch import Tensor

from zeno.faults.fault import Fault, check_count
from zeno.faults.scene import Scene


@dataclass(frozen=True)
class Replay(Fault):
    """Sends the first gradient that it computed while faulty again and again; a new one after every `every` steps."""

    every: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every is not None:
            check_count(self, "every", self.every, 1)

    def on_gradients(self, scene: Scene) -> Tensor:
        return torch.stack([self._kept(i, own, scene) for i, own in zip(scene.workers, scene.own, strict=True)])

    def _kept(self, worker: int, own: Tensor, scene: Scene) -> Tensor:  # [d]
        kept: Tensor | None
        step, kept = scene.memory.get(str(worker), [0, None])
        if kept is None or (self.every is not None and scene.step - step >= self.every):
            step, kept = scene.step, own.clone()
            scene.memory[str(worker)] = [step, kept]
        return kept.to(own)
