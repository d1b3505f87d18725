"""Workers and scorers as actors of a Ray cluster. Only this package imports ray, which is an extra."""

from zeno.workers.ray.cluster import RayCluster
from zeno.workers.ray.scorers import RayScorers
from zeno.workers.ray.session import Session

__all__ = ["RayCluster", "RayScorers", "Session"]
