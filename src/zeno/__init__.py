"""Zeno: distributed SGD that survives any number of faulty workers, as long as one is good."""

from zeno.cluster import Cluster, Faulty, LocalCluster, Reply
from zeno.data import IID, SPLITS, Batch, ByLabel, Dataset, Dirichlet, Disjoint, Split
from zeno.faults import FAULTS, BitFlip, Fault, Gaussian, LabelFlip, SignFlip
from zeno.problem import Problem
from zeno.records import Record, Summary, summarize
from zeno.rules import RULES, Aggregate, Descent, Krum, Mean, Median, Rule, TooFewUsable, TrimmedMean, Zeno
from zeno.run import Run
from zeno.server import Server
from zeno.tasks import TASKS, Task
from zeno.train import train

__all__ = [
    "FAULTS",
    "IID",
    "RULES",
    "SPLITS",
    "TASKS",
    "Aggregate",
    "Batch",
    "BitFlip",
    "ByLabel",
    "Cluster",
    "Dataset",
    "Descent",
    "Dirichlet",
    "Disjoint",
    "Fault",
    "Faulty",
    "Gaussian",
    "Krum",
    "LabelFlip",
    "LocalCluster",
    "Mean",
    "Median",
    "Problem",
    "Record",
    "Reply",
    "Rule",
    "Run",
    "Server",
    "SignFlip",
    "Split",
    "Summary",
    "Task",
    "TooFewUsable",
    "TrimmedMean",
    "Zeno",
    "summarize",
    "train",
]
