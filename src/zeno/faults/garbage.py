from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from zeno.faults.fault import Fault, Scene
from zeno.workers.reply import Reply

KINDS: dict[str, Callable[[Reply, Any], Reply]] = {
    "a number too many": lambda reply, g: replace(reply, gradient=torch.cat([g, g[:1]])),
    "half of the numbers": lambda reply, g: replace(reply, gradient=g[: len(g) // 2]),
    "a string": lambda reply, g: replace(reply, gradient="garbage"),  # type: ignore[arg-type]
    "another dtype": lambda reply, g: replace(reply, gradient=g.float() if g.dtype == torch.float64 else g.double()),
    "an old step": lambda reply, g: replace(reply, step=reply.step - 100),
}


class Garbage(Fault):
    """Malformed replies: a wrong size, a wrong type, half of the numbers or an old step, drawn at every step."""

    def on_replies(self, replies: Sequence[Reply], scene: Scene) -> Iterable[Reply]:
        spoil = list(KINDS.values())
        kinds = scene.rng.integers(len(KINDS), size=len(scene.workers))
        drawn = dict(zip(scene.workers, zip(kinds, scene.own, strict=True), strict=True))
        for reply in replies:
            kind, gradient = drawn.get(reply.worker, (None, None))
            yield reply if kind is None else spoil[kind](reply, gradient)
