"""WHERE workers run."""

from zeno.cluster.cluster import Cluster, Status
from zeno.cluster.faulty import Faulty
from zeno.cluster.local import LocalCluster
from zeno.reply import Reply

__all__ = ["Cluster", "Faulty", "LocalCluster", "Reply", "Status"]
