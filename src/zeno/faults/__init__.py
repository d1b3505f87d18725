"""What can be wrong with a worker: one fault per file. `zeno.Faulty` injects them into a cluster."""

from zeno.faults.alie import ALIE as ALIE
from zeno.faults.backdoor import Backdoor as Backdoor
from zeno.faults.bit_flip import BitFlip as BitFlip
from zeno.faults.cancelling_offsets import CancellingOffsets as CancellingOffsets
from zeno.faults.crash import Crash as Crash
from zeno.faults.fang import Fang as Fang
from zeno.faults.fault import Fault as Fault
from zeno.faults.fault import Scene as Scene
from zeno.faults.fault import Together as Together
from zeno.faults.fault import together as together
from zeno.faults.feature_noise import FeatureNoise as FeatureNoise
from zeno.faults.flood import Flood as Flood
from zeno.faults.garbage import Garbage as Garbage
from zeno.faults.gaussian import Gaussian as Gaussian
from zeno.faults.hang import Hang as Hang
from zeno.faults.huge import Huge as Huge
from zeno.faults.injection import Faulty as Faulty
from zeno.faults.inner_product import InnerProduct as InnerProduct
from zeno.faults.label_flip import LabelFlip as LabelFlip
from zeno.faults.label_noise import LabelNoise as LabelNoise
from zeno.faults.mimic import Mimic as Mimic
from zeno.faults.min_max import MinMax as MinMax
from zeno.faults.min_sum import MinSum as MinSum
from zeno.faults.non_finite import NonFinite as NonFinite
from zeno.faults.omniscient import Omniscient as Omniscient
from zeno.faults.opt_alie import OptALIE as OptALIE
from zeno.faults.opt_inner_product import OptInnerProduct as OptInnerProduct
from zeno.faults.pulse import Pulse as Pulse
from zeno.faults.random_bits import RandomBits as RandomBits
from zeno.faults.replay import Replay as Replay
from zeno.faults.sign_flip import SignFlip as SignFlip
from zeno.faults.slow import Slow as Slow
from zeno.faults.stale import Stale as Stale
from zeno.faults.turncoat import Turncoat as Turncoat
from zeno.faults.zero import Zero as Zero

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
    "stale": Stale,
    "random_bits": RandomBits,
    "pulse": Pulse,
    # colluding
    "alie": ALIE,
    "opt_alie": OptALIE,
    "inner_product": InnerProduct,
    "opt_inner_product": OptInnerProduct,
    "mimic": Mimic,
    "min_max": MinMax,
    "min_sum": MinSum,
    "fang": Fang,
    "cancelling_offsets": CancellingOffsets,
    "omniscient": Omniscient,
    "turncoat": Turncoat,
    # of behaviour
    "crash": Crash,
    "hang": Hang,
    "slow": Slow,
    "garbage": Garbage,
    "flood": Flood,
}
"""Faults by their names on the command line and in TOML files."""
