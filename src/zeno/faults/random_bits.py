from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from zeno.faults.fault import Fault, Scene
from zeno.rules.parameters import PositiveCount, Requirement

Bits = Annotated[int, Requirement("a whole number from 1 to 32", lambda value: type(value) is int and 1 <= value <= 32)]


@dataclass(frozen=True)
class RandomBits(Fault):
    """Random bit flips, also in exponents, in `words` random coordinates of the worker's gradient."""

    words: PositiveCount = 100
    bits: Bits = 1  # in each of these words of 32

    def on_gradients(self, scene: Scene) -> Tensor:
        sent = scene.own.clone()
        if sent.dtype != torch.float32:
            raise ValueError(f"RandomBits needs gradients in float32. Found {sent.dtype}.")
        for row in sent.view(torch.int32):
            places = scene.rng.choice(len(row), size=min(self.words, len(row)), replace=False)
            which = scene.rng.permuted(np.tile(np.arange(32, dtype=np.uint32), (len(places), 1)), axis=1)
            masks = (np.uint32(1) << which[:, : self.bits]).sum(axis=1, dtype=np.uint32)
            row[torch.from_numpy(places)] ^= torch.from_numpy(masks.view(np.int32)).to(row)
        return sent
