"""An answer to a question of long ago."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zeno.faults.fault import Fault, check_count
from zeno.faults.scene import Scene
from zeno.workers.reply import Reply


@dataclass(frozen=True)
class Slow(Fault):
    """Answers `steps` steps late, when nobody has a use for it."""

    steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self, "steps", self.steps, 1)

    def needs(self, workers: Sequence[int], correct: Sequence[int]) -> Sequence[int]:
        return ()

    def on_replies(self, replies: Sequence[Reply], scene: Scene) -> Iterable[Reply]:
        under_way = [*scene.memory.get("under way", []), *([scene.step, worker] for worker in scene.workers)]
        here = [pair for pair in under_way if pair[0] <= scene.step - self.steps]
        scene.memory["under way"] = [pair for pair in under_way if pair not in here]
        without_numbers = [reply for reply in replies if reply.worker not in scene.workers]
        return [*without_numbers, *(Reply(worker, step, None, "came late", late=True) for step, worker in here)]
