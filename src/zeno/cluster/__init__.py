"""WHERE workers run."""

from zeno.cluster.cluster import NOBODY, Cluster, Status
from zeno.cluster.faulty import Faulty
from zeno.cluster.local import LocalCluster
from zeno.cluster.remembering import Remembering
from zeno.reply import Reply

__all__ = ["NOBODY", "Cluster", "Faulty", "LocalCluster", "Remembering", "Reply", "Status"]
