"""WHAT goes wrong on a worker: one fault a file. They act through `zeno.cluster.Faulty`."""

from zeno.faults.bit_flip import BitFlip
from zeno.faults.fault import Fault
from zeno.faults.gaussian import Gaussian
from zeno.faults.label_flip import LabelFlip
from zeno.faults.sign_flip import SignFlip

FAULTS: dict[str, type[Fault]] = {
    "label_flip": LabelFlip,
    "bit_flip": BitFlip,
    "sign_flip": SignFlip,
    "gaussian": Gaussian,
}

__all__ = ["FAULTS", "BitFlip", "Fault", "Gaussian", "LabelFlip", "SignFlip"]
