"""The ledger's view of one worker, and how somebody is called because of it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """The ledger's view of one worker."""

    worker: int
    name: str  # the number as text, if the worker has no name
    machine: str  # where it runs, or ran when it became suspect; empty if unknown, or if all run on one
    verdict: str  # "suspect", "mended" (no longer suspect), or "" (too little evidence)
    reason: str  # of the verdict: "failing", "too large", "harmful", "worse than others"; or ""
    since: int | None  # the step of the verdict
    evidence: float  # the highest so far: 1 says nothing, `Ledger.threshold` makes a suspect
    steps: int  # at which it was asked
    dropped: float | None  # share of the steps at which it was asked and some worker was kept; None without such steps
    recently: float | None  # the same over the last `RECENT` steps of the run
    left_out: bool  # the rule hardly uses it lately, and uses others
    rank: float | None  # mean rank among those asked, 1 is best; None where the rule does not rank
    cosine: float | None  # mean cosine with the server's own gradient; None where it is not known
    streak: int  # the most consecutive steps at which it was dropped
    errors: dict[str, int]  # steps without a usable reply, by kind; and steps with one that was too large
    late: int  # replies that arrived after their step was over
    quarantined: int  # steps at which it was not asked, also before it joined and after it left
    faulty: float | None  # share of the steps with an injected fault; None when unknown

    @property
    def label(self) -> str:
        """The name, and the machine if there are several: `3 on gpu-07`."""
        return f"{self.name} on {self.machine}" if self.machine else self.name


def call(on_suspect: Callable[[Row], object], row: Row) -> None:
    """Calls a function of the user; if it raises, training goes on."""
    try:
        on_suspect(row)
    except Exception:
        logging.getLogger("zeno").exception("on_suspect raised for the suspect %s, at step %s", row.name, row.since)
