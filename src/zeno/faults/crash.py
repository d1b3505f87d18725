"""A process that is gone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zeno.faults.fault import Fault
from zeno.faults.scene import Scene
from zeno.workers.reply import Reply


@dataclass(frozen=True)
class Crash(Fault):
    """Dies: there is no gradient, and the cluster says so at once."""

    def needs(self, workers: Sequence[int], correct: Sequence[int]) -> Sequence[int]:
        return ()

    def on_replies(self, replies: Sequence[Reply], scene: Scene) -> Iterable[Reply]:
        return [Reply(reply.worker, scene.step, None, "died") for reply in replies]
