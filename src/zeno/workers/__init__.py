"""WHERE workers run."""

from zeno.workers.cluster import NOBODY, Cluster, Status
from zeno.workers.local import LocalCluster
from zeno.workers.momentum_cluster import Remembering
from zeno.workers.reply import Reply

__all__ = ["NOBODY", "Cluster", "LocalCluster", "Remembering", "Reply", "Status"]
