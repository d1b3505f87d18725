"""A process that never answers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zeno.faults.fault import Fault
from zeno.faults.scene import Scene
from zeno.workers.reply import Reply


@dataclass(frozen=True)
class Hang(Fault):
    """Sends nothing, as one that hangs; the step goes on without it, and nobody has to wait."""

    def needs(self, workers: Sequence[int], correct: Sequence[int]) -> Sequence[int]:
        return ()

    def on_replies(self, replies: Sequence[Reply], scene: Scene) -> Iterable[Reply]:
        return []
