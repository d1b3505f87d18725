from collections.abc import Iterable, Sequence

from zeno.faults.fault import IndependentFault, Scene
from zeno.workers.reply import Reply


class Hang(IndependentFault):
    """No reply. The step continues without it; the simulation does not wait."""

    def on_replies(self, replies: Sequence[Reply], scene: Scene) -> Iterable[Reply]:
        return []
