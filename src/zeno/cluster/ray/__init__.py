"""Workers and scorers as actors of a Ray cluster. Only this package imports ray, which is an extra."""

from zeno.cluster.ray.cluster import RayCluster
from zeno.cluster.ray.scorers import RayScorers
from zeno.cluster.ray.session import Session

__all__ = ["RayCluster", "RayScorers", "Session"]
