"""WHERE workers run."""

from zeno.cluster.cluster import Cluster, Reply, Status
from zeno.cluster.faulty import Faulty, fixed, redrawn
from zeno.cluster.local import LocalCluster

__all__ = ["Cluster", "Faulty", "LocalCluster", "Reply", "Status", "fixed", "redrawn"]
