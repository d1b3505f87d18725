"""WHAT goes wrong on a worker: one fault a file. They act through `zeno.cluster.Faulty`."""

from zeno.faults.alie import ALIE
from zeno.faults.backdoor import Backdoor
from zeno.faults.bit_flip import BitFlip
from zeno.faults.crash import Crash
from zeno.faults.fault import SCHEDULE, Fault
from zeno.faults.faulty_cluster import Faulty
from zeno.faults.feature_noise import FeatureNoise
from zeno.faults.garbage import Garbage
from zeno.faults.gaussian import Gaussian
from zeno.faults.hang import Hang
from zeno.faults.huge import Huge
from zeno.faults.inner_product import InnerProduct
from zeno.faults.label_flip import LabelFlip
from zeno.faults.label_noise import LabelNoise
from zeno.faults.mimic import Mimic
from zeno.faults.min_max import MinMax
from zeno.faults.min_sum import MinSum
from zeno.faults.non_finite import NonFinite
from zeno.faults.omniscient import Omniscient
from zeno.faults.random_bits import RandomBits
from zeno.faults.replay import Replay
from zeno.faults.scene import Scene
from zeno.faults.schedule import Schedule
from zeno.faults.sign_flip import SignFlip
from zeno.faults.slow import Slow
from zeno.faults.together import Together, together
from zeno.faults.zero import Zero

FAULTS: dict[str, type[Fault]] = {
    # of the data
    "label_flip": LabelFlip,
    "label_noise": LabelNoise,
    "feature_noise": FeatureNoise,
    "backdoor": Backdoor,
    # of the message
    "bit_flip": BitFlip,
    "sign_flip": SignFlip,
    "gaussian": Gaussian,
    "zero": Zero,
    "non_finite": NonFinite,
    "huge": Huge,
    "replay": Replay,
    "random_bits": RandomBits,
    # colluding
    "alie": ALIE,
    "inner_product": InnerProduct,
    "mimic": Mimic,
    "min_max": MinMax,
    "min_sum": MinSum,
    "omniscient": Omniscient,
    # of behaviour
    "crash": Crash,
    "hang": Hang,
    "slow": Slow,
    "garbage": Garbage,
}
"""Faults by the names that the command line and TOML files have for them."""

__all__ = [
    "ALIE",
    "FAULTS",
    "SCHEDULE",
    "Backdoor",
    "BitFlip",
    "Crash",
    "Fault",
    "Faulty",
    "FeatureNoise",
    "Garbage",
    "Gaussian",
    "Hang",
    "Huge",
    "InnerProduct",
    "LabelFlip",
    "LabelNoise",
    "Mimic",
    "MinMax",
    "MinSum",
    "NonFinite",
    "Omniscient",
    "RandomBits",
    "Replay",
    "Scene",
    "Schedule",
    "SignFlip",
    "Slow",
    "Together",
    "Zero",
    "together",
]
