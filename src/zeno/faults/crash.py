from collections.abc import Iterable, Sequence

from zeno.faults.fault import IndependentFault, Scene
from zeno.workers.reply import ErrorKind, Reply, ReplyError


class Crash(IndependentFault):
    """The worker dies: instead of its gradient, the server receives an error at once."""

    def on_replies(self, replies: Sequence[Reply], scene: Scene) -> Iterable[Reply]:
        return [Reply(reply.worker, scene.step, None, ReplyError(ErrorKind.DIED, "died")) for reply in replies]
