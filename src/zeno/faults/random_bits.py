"""Flipped bits in memory: a cosmic ray, a bad module."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zeno.faults.fault import Fault, check_count
from zeno.faults.scene import Scene


@dataclass(frozen=True)
class RandomBits(Fault):
    """Flips random bits, of the exponent too, in random words of its own gradient; in all where it has no more."""

    words: int = 100
    bits: int = 1  # of the 32 in each of these words

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self, "words", self.words, 1)
        check_count(self, "bits", self.bits, 1)
        if self.bits > 32:
            raise ValueError(f"RandomBits needs bits of at most 32: a word has no more. Found bits={self.bits}.")

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
