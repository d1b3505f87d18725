"""Workers and scorers as actors of a Ray cluster. Only this package imports ray, which is an optional dependency."""

from zeno.workers.ray.cluster import RayCluster
from zeno.workers.ray.scorers import RayScorers
from zeno.workers.ray.session import start_or_join
from zeno.workers.ray.tickets import AsynchronousRayCluster

__all__ = ["AsynchronousRayCluster", "RayCluster", "RayScorers", "start_or_join"]
