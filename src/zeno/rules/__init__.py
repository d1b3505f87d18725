"""WHAT the server believes: pure functions of the candidates, one rule a file."""

from zeno.rules.krum import Krum
from zeno.rules.mean import Mean
from zeno.rules.median import Median
from zeno.rules.rule import Aggregate, Descent, Rule, TooFewUsable
from zeno.rules.trimmed_mean import TrimmedMean
from zeno.rules.zeno import Zeno

RULES: dict[str, type[Rule]] = {
    "mean": Mean,
    "median": Median,
    "trimmed_mean": TrimmedMean,
    "krum": Krum,
    "zeno": Zeno,
}

__all__ = [
    "RULES",
    "Aggregate",
    "Descent",
    "Krum",
    "Mean",
    "Median",
    "Rule",
    "TooFewUsable",
    "TrimmedMean",
    "Zeno",
]
