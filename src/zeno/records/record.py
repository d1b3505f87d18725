"""The record of one step, and the summary of a run."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace

from zeno.records.typed import typed
from zeno.workers.reply import ReplyError


@dataclass(frozen=True)
class Record:
    """One step. Records of equal steps are equal: timings, machines and worker counts are not compared.

    Workers are numbered from 0. Names are on the record of the step at which a worker joins: the names of all records
    in order are those of workers 0, 1, 2 and so on. A record has an entry for each worker that had joined by then.
    """

    step: int
    lr: float | None  # None where it is not known
    kept: list[bool] | None  # per worker; None when the step was skipped
    scores: list[float | None] | None  # per worker, None for unusable candidates; None when the rule does not rank
    weights: list[float] | None = None  # per worker: its share in the update; None when the step was skipped
    own: float = 0.0  # the share of the server's own gradient
    cosines: list[float | None] | None = None  # per worker: between its candidate and the server's own gradient
    lengths: list[float | None] | None = None  # per worker: of its candidate, relative to the server's own gradient
    quarantined: list[int] = field(default_factory=list)  # workers that were not asked, also because they had left
    errors: dict[int, ReplyError] = field(default_factory=dict)  # worker -> what was wrong with its reply
    late: list[int] = field(default_factory=list)  # workers whose reply to an earlier step arrived now; discarded
    skipped: str | None = None  # why the step made no update
    note: str | None = None  # what the rule could not do as documented, or could not try
    faulty: list[int] | None = None  # workers with an injected fault; None when unknown
    train_loss: float | None = None  # after this step, if evaluated; None when not finite
    accuracy: float | None = None  # on the test set, after this step; None when not measured
    evaluated: bool = False  # whether the loss was measured
    arrivals: list[list[int]] | None = None  # [worker, version] in order of arrival; None where steps are synchronous
    lost: list[int] = field(default_factory=list)  # workers among these from which no gradient came
    joined: list[str] = field(default_factory=list)  # names of the workers that are new; empty where they have none
    machines: dict[int, str] = field(default_factory=dict, compare=False)  # worker -> where it runs, from this step on
    seconds: dict[str, float] = field(default_factory=dict, compare=False)  # per phase
    workers: dict[str, int] = field(default_factory=dict, compare=False)  # how many are alive, late, lost

    @property
    def dropped(self) -> list[int]:
        """Workers that were asked and not kept, also those without a usable reply; empty if no worker was kept."""
        if self.kept is None or not any(self.kept):
            return []
        return [worker for worker, kept in enumerate(self.kept) if not kept and worker not in self.quarantined]

    @property
    def staleness(self) -> dict[int, int]:
        """Of each arrival in an asynchronous run: the updates since its worker was asked."""
        return {worker: self.step - version for worker, version in self.arrivals or ()}

    @property
    def measured(self) -> bool:
        """Whether something was measured after this step: the loss, the accuracy, or both."""
        return self.evaluated or self.accuracy is not None

    def widened(self, workers: int) -> "Record":
        """The same record with an entry for so many workers: those that joined later were not asked."""
        more = workers - len(self.kept or self.scores or self.weights or [None] * workers)
        if more <= 0:
            return self
        return replace(
            self,
            kept=None if self.kept is None else self.kept + [False] * more,
            scores=None if self.scores is None else self.scores + [None] * more,
            weights=None if self.weights is None else self.weights + [0.0] * more,
            quarantined=[*self.quarantined, *range(workers - more, workers)],
        )

    def measures_again(self, other: "Record") -> bool:
        """Whether this is the other record with something else measured after the step."""
        return replace(self, train_loss=other.train_loss, accuracy=other.accuracy, evaluated=other.evaluated) == other

    def to_json(self) -> str:
        return json.dumps(asdict(self), allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> "Record":
        """Reads a line; raises ValueError if it is not the record of a step, whatever it is."""
        try:
            values = json.loads(line)
            errors = {int(i): ReplyError.from_json(error) for i, error in values.get("errors", {}).items()}
            machines = {int(i): machine for i, machine in values.get("machines", {}).items()}
        except (TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"A line is not a record: {error}") from None
        return typed(cls, {**values, "errors": errors, "machines": machines})


def finite(values: Iterable[float]) -> list[float | None]:
    """Replaces NaN and infinity, which JSON does not have, by None."""
    return [value if math.isfinite(value) else None for value in values]


def rounded(values: Iterable[float]) -> list[float | None]:
    """To four digits, which records have room for; None where not finite."""
    return finite(float(f"{value:.4g}") for value in values)


@dataclass(frozen=True)
class Summary:
    """A run in a few numbers; None where a number is not available."""

    steps: int
    skipped: int
    late: int  # replies that arrived after their step was over
    evaluations: int  # of the loss
    accuracy: float | None  # when last measured
    train_loss: float | None  # of the last evaluation
    faulty_kept: float | None  # share of the faulty candidates that the rule kept
    faulty_among_kept: float | None  # share of the kept candidates that were faulty
    own: float | None  # mean share of the server's own gradient in the updates
    seconds_per_step: float | None


def summarize(records: Sequence[Record]) -> Summary:
    """Summarizes the records of a run."""
    last = next((r for r in reversed(records) if r.evaluated), None)
    accuracy = next((r.accuracy for r in reversed(records) if r.accuracy is not None), None)
    known = [(r.kept, set(r.faulty).difference(r.quarantined)) for r in records if r.kept and r.faulty is not None]
    shares = [r.own for r in records if r.kept is not None]
    num_faulty = sum(len(faulty) for _, faulty in known)
    num_kept = sum(sum(kept) for kept, _ in known)
    num_both = sum(kept[worker] for kept, faulty in known for worker in faulty)
    return Summary(
        steps=len(records),
        skipped=sum(r.skipped is not None for r in records),
        late=sum(len(r.late) for r in records),
        evaluations=sum(r.evaluated for r in records),
        accuracy=accuracy,
        train_loss=last.train_loss if last else None,
        faulty_kept=num_both / num_faulty if num_faulty else None,
        faulty_among_kept=num_both / num_kept if num_faulty and num_kept else None,
        own=sum(shares) / len(shares) if shares else None,
        seconds_per_step=sum(sum(r.seconds.values()) for r in records) / len(records) if records else None,
    )
