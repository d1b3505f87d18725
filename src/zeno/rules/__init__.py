"""WHAT the server believes: pure functions of the candidates, one rule a file."""

from collections.abc import Callable

from zeno.rules.arc import ARC
from zeno.rules.bucketing import Bucketing
from zeno.rules.bulyan import Bulyan
from zeno.rules.caf import CAF
from zeno.rules.centered_clipping import CenteredClipping
from zeno.rules.cge import CGE
from zeno.rules.chain import Chain, PreAggregator, chain
from zeno.rules.clip import Clip
from zeno.rules.dnc import DnC
from zeno.rules.fltrust import FLTrust
from zeno.rules.geometric_median import GeometricMedian
from zeno.rules.krum import Krum
from zeno.rules.mda import MDA
from zeno.rules.meamed import MeaMed
from zeno.rules.mean import Mean
from zeno.rules.median import Median
from zeno.rules.monna import MoNNA
from zeno.rules.multi_krum import MultiKrum
from zeno.rules.nnm import NNM
from zeno.rules.phocas import Phocas
from zeno.rules.rule import Aggregate, Descent, Rule, TooFewUsable, bears
from zeno.rules.signguard import SignGuard
from zeno.rules.smea import SMEA
from zeno.rules.streaming import Arrivals
from zeno.rules.trimmed_mean import TrimmedMean
from zeno.rules.zeno import Zeno

RULES: dict[str, type[Rule]] = {
    "mean": Mean,
    "median": Median,
    "trimmed_mean": TrimmedMean,
    "krum": Krum,
    "multi_krum": MultiKrum,
    "bulyan": Bulyan,
    "geometric_median": GeometricMedian,
    "centered_clipping": CenteredClipping,
    "meamed": MeaMed,
    "phocas": Phocas,
    "mda": MDA,
    "smea": SMEA,
    "monna": MoNNA,
    "cge": CGE,
    "caf": CAF,
    "dnc": DnC,
    "signguard": SignGuard,
    "fltrust": FLTrust,
    "zeno": Zeno,
}
"""Rules by the names that the command line and TOML files have for them."""

PRE_AGGREGATORS: dict[str, type[PreAggregator]] = {
    "nnm": NNM,
    "bucketing": Bucketing,
    "clip": Clip,
    "arc": ARC,
}
"""What goes before a rule, as in `nnm+trimmed_mean`, by name."""

PRESETS: dict[str, Callable[..., Rule]] = {"zeno_auto": Zeno.auto}
"""Names for rules with settings that measure best."""

PARTS: dict[str, type[Rule] | type[PreAggregator]] = {**PRE_AGGREGATORS, **RULES}
"""What `nnm+trimmed_mean` is made of."""

__all__ = [
    "ARC",
    "CAF",
    "CGE",
    "MDA",
    "NNM",
    "PARTS",
    "PRESETS",
    "PRE_AGGREGATORS",
    "RULES",
    "SMEA",
    "Aggregate",
    "Arrivals",
    "Bucketing",
    "Bulyan",
    "CenteredClipping",
    "Chain",
    "Clip",
    "Descent",
    "DnC",
    "FLTrust",
    "GeometricMedian",
    "Krum",
    "MeaMed",
    "Mean",
    "Median",
    "MoNNA",
    "MultiKrum",
    "Phocas",
    "PreAggregator",
    "Rule",
    "SignGuard",
    "TooFewUsable",
    "TrimmedMean",
    "Zeno",
    "bears",
    "chain",
]
