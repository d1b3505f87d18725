from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from zeno.faults.fault import Fault, Scene
from zeno.problem.registry import build
from zeno.rules.parameters import Positive
from zeno.workers.reply import Reply


@dataclass(frozen=True)
class Flood(Fault):
    """Replies `speed` times as fast in a simulated asynchronous run, with what another fault of the message sends."""

    speed: Positive = 10.0
    sends: str = "sign_flip"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.message, Flood) or type(self.message).on_batch is not Fault.on_batch:
            raise ValueError(f"Flood needs sends as a fault of the message. Found sends={self.sends!r}.")

    @cached_property
    def message(self) -> Fault:
        """The fault that makes its messages, which acts whenever this one does."""
        from zeno.faults import FAULTS  # which has this one

        return build("fault", self.sends, FAULTS)

    def needs(self, workers: Sequence[int], correct: Sequence[int]) -> Sequence[int]:
        return self.message.needs(workers, correct)

    def on_replies(self, replies: Sequence[Reply], scene: Scene) -> Iterable[Reply]:
        return self.message.on_replies(replies, scene)

    def on_delay(self, delay: float) -> float:
        return self.message.on_delay(delay) / self.speed
