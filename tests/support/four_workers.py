"""The records of four workers, and a ledger with known rows."""

import math

from zeno.records.ledger import Ledger
from zeno.records.record import Record
from zeno.records.row import Row
from zeno.workers.reply import ErrorKind, ReplyError

# Four workers: 0 and 1 are good, 2 sends nothing usable now and then, 3 is faulty.
FIRST = Record(
    step=0,
    lr=0.5,
    kept=[True, True, False, False],
    scores=[3.0, 2.0, 1.0, -1.0],
    seconds={"gradients": 2.0, "update": 0.25},
    workers={"alive": 4, "late": 0, "lost": 0},
)
SECOND = Record(
    step=1,
    lr=0.25,
    kept=[True, True, False, False],
    scores=[2.0, 3.0, None, -1.0],
    errors={2: ReplyError(ErrorKind.DIED, "died")},
    late=[2, 2],
    train_loss=0.5,
    accuracy=0.75,
    evaluated=True,
    seconds={"gradients": 1.0, "update": 0.5},
    workers={"alive": 3, "late": 0, "lost": 1},
)
SKIPPED = Record(
    step=2,
    lr=0.25,
    kept=None,
    scores=None,
    errors={2: ReplyError(ErrorKind.DIED, "died")},
    skipped="too few",
    seconds={"gradients": 4.0},
    workers={"alive": 2, "late": 1, "lost": 1},
)
WARM_UP = Record(step=3, lr=0.125, kept=[False] * 4, scores=None, train_loss=None, evaluated=True)
LAST = Record(
    step=4,
    lr=0.125,
    kept=[True, False, False, False],
    scores=None,
    quarantined=[2],
    workers={"alive": 4, "late": 0, "lost": 0},
)
RECORDS = [FIRST, SECOND, SKIPPED, WARM_UP, LAST]


def row(worker: int, verdict: str = "", since: int | None = None, evidence: float = 1.0, **errors: int) -> Row:
    reason = "failing" if verdict else ""
    known = (worker, str(worker), "", verdict, reason, since, evidence)
    return Row(*known, 5, 0.5, None, False, None, None, 2, errors, 1, 0, None)


class FixedLedger(Ledger):
    """A ledger with the same rows for any records; the evidence against worker 1 is the number of records."""

    def __init__(self) -> None:
        super().__init__(4)

    @property
    def suspects(self) -> list[int]:
        return [3]

    @property
    def rows(self) -> list[Row]:
        mended, failing = row(1, "mended", 7, self.steps), row(2, evidence=math.inf, died=2, late=1)
        return [row(0), mended, failing, row(3, "suspect", 2, 1e3)]
