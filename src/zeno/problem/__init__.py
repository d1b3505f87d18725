"""A model and its loss as functions of one flat parameter vector: the only part that knows layers."""

from zeno.problem.oracle import OWN_STATISTICS_FROM, Oracle
from zeno.problem.problem import PRECISIONS, Loss, Problem, kind_of, norms_of

__all__ = ["OWN_STATISTICS_FROM", "PRECISIONS", "Loss", "Oracle", "Problem", "kind_of", "norms_of"]
