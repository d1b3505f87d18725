from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zeno.faults.fault import IndependentFault, Scene
from zeno.rules.parameters import PositiveCount
from zeno.workers.reply import CAME_LATE, Reply


@dataclass(frozen=True)
class Slow(IndependentFault):
    """Replies arrive `steps` steps late, and are discarded; in an asynchronous run, each takes `steps` times longer."""

    steps: PositiveCount = 1

    def on_replies(self, replies: Sequence[Reply], scene: Scene) -> Iterable[Reply]:
        waiting = [*scene.memory.get("under way", []), *([scene.step, worker] for worker in scene.workers)]
        due = [pair for pair in waiting if pair[0] <= scene.step - self.steps]
        scene.memory["under way"] = [pair for pair in waiting if pair not in due]
        failed = [reply for reply in replies if reply.worker not in scene.workers]
        return [*failed, *(Reply(worker, step, None, CAME_LATE, late=True) for step, worker in due)]

    def on_arrival(self, reply: Reply, scene: Scene) -> Reply:
        return reply

    def on_delay(self, delay: float) -> float:
        return delay * (1 + self.steps)
