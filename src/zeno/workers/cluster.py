"""The cluster protocol: one reply from each worker for each step; or, asynchronously, one ticket for each worker.

A ticket asks one worker for one gradient, on one version of the model: the parameters after so many steps. A worker has
at most one ticket at a time, so it cannot send more than it was asked for.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from zeno.workers.reply import Reply

NOBODY: Collection[int] = frozenset()


class Status(NamedTuple):
    """How many workers reply, how many missed the last deadline, and how many are gone."""

    alive: int
    late: int
    lost: int


class Cluster(AbstractContextManager["Cluster"], Protocol):
    """Workers, wherever they run."""

    size: int
    remote: bool = False  # whether workers leave the cores of this process free, to score replies while others compute

    @property
    def status(self) -> Status:
        return Status(self.size, 0, 0)

    @property
    def machines(self) -> Mapping[int, str]:
        """Worker -> the name of the machine that it runs on, as far as known; empty for workers in this process."""
        return {}

    def gradients(
        self, params: Tensor, buffers: Mapping[str, Tensor], step: int, need: int = 1, skip: Collection[int] = NOBODY
    ) -> Iterator[Reply]:
        """Yields one reply from each worker, as they arrive. Late replies to earlier steps may be among them.

        With fewer than `need` gradients the step will be skipped, so it is worth waiting for workers that are being
        restarted. Workers in `skip` compute and send nothing, and do not count as late or lost. A later call may ask
        them, also for the same step.
        """

    def idle(self, step: int) -> Collection[int]:
        """The workers that have no ticket and can be asked now, at this step."""
        raise TypeError(f"A {type(self).__name__} has no asynchronous workers. Use a cluster that has `ask`.")

    def ask(self, worker: int, params: Tensor, buffers: Mapping[str, Tensor], step: int) -> None:
        """Gives an idle worker its ticket, and returns at once. The parameters [d] and buffers must not change."""
        raise TypeError(f"A {type(self).__name__} has no asynchronous workers. Use a cluster that has `ask`.")

    def next_reply(self) -> Reply | None:
        """The next reply to a ticket, as soon as there is one; None if there is no ticket that could be answered."""
        raise TypeError(f"A {type(self).__name__} has no asynchronous workers. Use a cluster that has `ask`.")

    def state_to_save(self) -> Any:
        """The state between two steps that another cluster needs in order to continue; None if there is none."""
        return None

    def load_state(self, state: Any) -> None:
        """Continues from what `state_to_save` returned."""
        return

    def __exit__(self, *error: Any) -> None:
        """Shuts the workers down, where that is needed."""
        return


class ClusterWrapper(Cluster):
    """A cluster that changes the replies of another one, and forwards everything else to it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.size = cluster.size

    @property
    def status(self) -> Status:
        return self.cluster.status

    @property
    def machines(self) -> Mapping[int, str]:
        return self.cluster.machines

    def idle(self, step: int) -> Collection[int]:
        return self.cluster.idle(step)

    def ask(self, worker: int, params: Tensor, buffers: Mapping[str, Tensor], step: int) -> None:
        self.cluster.ask(worker, params, buffers, step)

    def next_reply(self) -> Reply | None:
        return self.cluster.next_reply()

    def state_to_save(self) -> dict[str, Any]:
        return {"cluster": self.cluster.state_to_save()}

    def load_state(self, state: Any) -> None:
        self.cluster.load_state(state["cluster"])

    def __enter__(self) -> "ClusterWrapper":
        self.cluster.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.cluster.__exit__(*error)
