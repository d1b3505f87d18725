"""How candidates are combined into an update: one aggregation rule per module."""

from zeno.rules.afl_guard import AFLGuard as AFLGuard
from zeno.rules.arc import ARC as ARC
from zeno.rules.auto_bant import AutoBANT as AutoBANT
from zeno.rules.bant import BANT as BANT
from zeno.rules.bucketing import Bucketing as Bucketing
from zeno.rules.bulyan import Bulyan as Bulyan
from zeno.rules.bygars import ByGARS as ByGARS
from zeno.rules.caf import CAF as CAF
from zeno.rules.centered_clipping import CenteredClipping as CenteredClipping
from zeno.rules.cge import CGE as CGE
from zeno.rules.chain import Chain as Chain
from zeno.rules.chain import chain as chain
from zeno.rules.clip import Clip as Clip
from zeno.rules.dnc import DnC as DnC
from zeno.rules.fedgreed import FedGreed as FedGreed
from zeno.rules.fltrust import FLTrust as FLTrust
from zeno.rules.geometric_median import GeometricMedian as GeometricMedian
from zeno.rules.krum import Krum as Krum
from zeno.rules.mda import MDA as MDA
from zeno.rules.meamed import MeaMed as MeaMed
from zeno.rules.mean import Mean as Mean
from zeno.rules.median import Median as Median
from zeno.rules.monna import MoNNA as MoNNA
from zeno.rules.multi_krum import MultiKrum as MultiKrum
from zeno.rules.nnm import NNM as NNM
from zeno.rules.phocas import Phocas as Phocas
from zeno.rules.rule import PreAggregator as PreAggregator
from zeno.rules.rule import Rule as Rule
from zeno.rules.server_alone import ServerAlone as ServerAlone
from zeno.rules.signguard import SignGuard as SignGuard
from zeno.rules.smea import SMEA as SMEA
from zeno.rules.streaming import Arrivals as Arrivals
from zeno.rules.trimmed_mean import TrimmedMean as TrimmedMean
from zeno.rules.zeno import Zeno as Zeno
from zeno.rules.zeno_auto import ZenoAuto as ZenoAuto
from zeno.rules.zenopp import ZenoPP as ZenoPP

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
    "bant": BANT,
    "auto_bant": AutoBANT,
    "bygars": ByGARS,
    "fedgreed": FedGreed,
    "zeno": Zeno,
    "zeno_auto": ZenoAuto,
    "zenopp": ZenoPP,
    "afl_guard": AFLGuard,
    "server_alone": ServerAlone,
}
"""Rules by their names on the command line and in TOML files."""

PRE_AGGREGATORS: dict[str, type[PreAggregator]] = {
    "nnm": NNM,
    "bucketing": Bucketing,
    "clip": Clip,
    "arc": ARC,
}
"""Pre-aggregators, which go before a rule as in `nnm+trimmed_mean`, by name."""

PARTS: dict[str, type[Rule] | type[PreAggregator]] = {**PRE_AGGREGATORS, **RULES}
"""All parts of a chain such as `nnm+trimmed_mean`, by name."""
