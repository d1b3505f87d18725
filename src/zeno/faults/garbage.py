"""Anything but a gradient."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from zeno.faults.fault import Fault
from zeno.faults.scene import Scene
from zeno.workers.reply import Reply

KINDS: dict[str, Callable[[Reply, Any], Reply]] = {
    "a number too many": lambda reply, g: replace(reply, gradient=torch.cat([g, g[:1]])),
    "half of the numbers": lambda reply, g: replace(reply, gradient=g[: len(g) // 2]),
    "a string": lambda reply, g: replace(reply, gradient="garbage"),  # type: ignore[arg-type]
    "another type": lambda reply, g: replace(reply, gradient=g.to(_other(g.dtype))),
    "a step that is long over": lambda reply, g: replace(reply, step=reply.step - 100),
}


@dataclass(frozen=True)
class Garbage(Fault):
    """Sends a wrong size, a wrong type, half of the numbers, or those of a step long over: drawn anew each time."""

    def on_replies(self, replies: Sequence[Reply], scene: Scene) -> Iterable[Reply]:
        makes, gradients = list(KINDS.values()), dict(zip(scene.workers, scene.own, strict=True))
        drawn = dict(zip(scene.workers, scene.rng.integers(len(makes), size=len(scene.workers)), strict=True))
        for reply in replies:
            known = reply.worker in gradients
            yield makes[drawn[reply.worker]](reply, gradients[reply.worker]) if known else reply


def _other(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype == torch.float64 else torch.float64
