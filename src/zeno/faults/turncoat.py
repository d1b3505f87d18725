from dataclasses import dataclass, field

from zeno.faults.omniscient import Omniscient
from zeno.rules.parameters import Count


@dataclass(frozen=True)
class Turncoat(Omniscient):
    """Correct until step `start`, which is 100 by default, and omniscient from then on.

    Its workers first build up trust in rules and ledgers that judge workers over many steps.
    """

    start: Count = field(default=100, kw_only=True)
