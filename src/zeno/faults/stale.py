from dataclasses import dataclass

import torch
from torch import Tensor

from zeno.faults.fault import Fault, Scene
from zeno.rules.parameters import PositiveCount


@dataclass(frozen=True)
class Stale(Fault):
    """The gradient of a model that is `age` updates old, sent as if it were of the newest one; at first, the oldest."""

    age: PositiveCount = 10

    def on_gradients(self, scene: Scene) -> Tensor:
        sent = []
        for worker, own in zip(map(str, scene.workers), scene.own, strict=True):
            computed = scene.memory.get(worker, [])  # [step, gradient], oldest first
            if not computed or not torch.equal(computed[-1][1].to(own), own):
                computed = [*computed, [scene.step, own.clone()]]
            old = [i for i, (step, _) in enumerate(computed) if step <= scene.step - self.age]
            scene.memory[worker] = computed[old[-1] if old else 0 :]
            sent.append(scene.memory[worker][0][1].to(own))
        return torch.stack(sent)
