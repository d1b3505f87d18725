"""What hostile input is tried on. A target raises if something got through."""

from collections.abc import Callable, Mapping

import numpy as np

from fuzz.folders import folders
from fuzz.replies import replies
from fuzz.requests import requests
from fuzz.rules import rules

TARGETS: Mapping[str, Callable[[np.random.Generator], None]] = {
    "rules": rules,
    "replies": replies,
    "folders": folders,
    "requests": requests,
}
