"""Which nodes are asked in a round."""

import random
import time
from collections.abc import Collection
from logging import INFO

from flwr.serverapp import Grid
from flwr.supercore import log

WAIT = 1.0  # seconds between two looks at the nodes


def sample(grid: Grid, fraction: float, least: int, available: int, resting: Collection[str]) -> list[int]:
    """A fraction of the connected nodes, at least `least`; waits until enough nodes are connected.

    Nodes in quarantine are not asked, unless nobody else is there: then fewer than `least` may be left.
    """
    needed = max(available, least, 1)
    while len(connected := sorted(set(grid.get_node_ids()))) < needed:
        log(INFO, "Waiting for nodes: %d are connected, %d are needed.", len(connected), needed)
        time.sleep(WAIT)
    awake = [node for node in connected if str(node) not in resting] or connected
    size = max(int(fraction * len(connected)), least, 1)
    return sorted(random.sample(awake, min(size, len(awake))))
