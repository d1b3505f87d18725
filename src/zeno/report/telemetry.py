"""A run as it goes on, for those who live in TensorBoard or Prometheus.

Both classes are called with every record, as `on_record` of `train`, and are closed as context managers:

    with TensorBoard(folder, run.workers) as board, Metrics(9100, run.workers) as metrics:
        train(run, folder, on_record=lambda record: (board(record), metrics(record)))

A run that is resumed gives the records that it has as `earlier`. Those that it makes again, because the checkpoint is
older than they are, may be among them: what is made again counts once.

Both packages are extras, and are imported when one of the classes is made. Steps count from 0, as in the records.
"""

import math
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from zeno.records.folder import Record
from zeno.records.ledger import Ledger, Row
from zeno.report.worker_map import LEGEND, Map

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.registry import Collector

TENSORBOARD_FOLDER = "tensorboard"
HOST = "127.0.0.1"  # metrics are for this machine only


class TensorBoard:
    """Scalars of every step; at evaluated ones and at the end also the map, the suspects and the evidence.

    Nothing is written before the first record. What the folder has from that step on is then replaced; records that
    come before it are written only where the folder has nothing yet.
    """

    def __init__(self, folder: Path, workers: int, earlier: Sequence[Record] = ()) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(_missing("TensorBoard", "tensorboard", "tensorboard")) from error
        self._make_writer = SummaryWriter
        self._folder = folder / TENSORBOARD_FOLDER
        self._earlier = earlier
        self._ledger = Ledger(workers)
        self._map = Map(workers)
        self._drawn = 0  # steps when the map was written last
        self._last_step = -1
        self._writer: Any = None
        self._told = 0  # steps when suspects were written last

    def __call__(self, record: Record) -> None:
        if self._writer is None:
            self._begin(record.step)
        self._count(record)
        self._write(record)
        self._last_step = record.step

    def _begin(self, step: int) -> None:
        fresh = not any(self._folder.glob("events.*"))
        self._writer = self._make_writer(log_dir=str(self._folder), purge_step=step, flush_secs=10)
        for record in self._earlier:
            if record.step < step:
                self._count(record)
                if fresh:
                    self._write(record)
        self._earlier = ()
        self._writer.add_text("map", LEGEND, step)

    def _count(self, record: Record) -> None:
        self._ledger.add(record)
        self._map.add(record)

    def _write(self, record: Record) -> None:
        for tag, value in _scalars(record):
            self._writer.add_scalar(tag, value, record.step)
        if record.evaluated:
            self._tell(record.step)
            if self._map.steps >= 1.01 * self._drawn:  # fewer steps nobody would see, and each map takes space
                self._draw(record.step)
            self._writer.flush()

    def _tell(self, step: int) -> None:
        """Who is suspect."""
        rows = self._ledger.rows
        self._writer.add_scalar("suspects", sum(row.verdict == "suspect" for row in rows), step)
        for row in rows:
            self._writer.add_scalar(f"evidence_log10/{row.worker}", _log10(row.evidence), step)
        self._writer.add_text("suspects", suspects_text(rows, self._map.steps, self._ledger.threshold), step)
        self._told = self._map.steps

    def _draw(self, step: int) -> None:
        self._writer.add_image("map", self._map.image(), step, dataformats="HWC")
        self._drawn = self._map.steps

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            if self._told < self._map.steps:
                self._tell(self._last_step)
            if self._drawn < self._map.steps:
                self._draw(self._last_step)
            self._writer.close()


def _scalars(record: Record) -> Iterator[tuple[str, float]]:
    yield "lr", record.lr
    yield "kept", sum(record.kept or [])
    if record.evaluated:
        yield "train_loss", math.nan if record.train_loss is None else record.train_loss
        if record.accuracy is not None:
            yield "accuracy", record.accuracy
    for phase, seconds in record.seconds.items():
        yield f"seconds/{phase}", seconds
    for state, number in record.workers.items():
        yield f"workers/{state}", number


def _log10(evidence: float) -> float:
    """A product of many numbers: it may be 0 or infinite, which no curve shows."""
    return min(300.0, math.log10(max(evidence, 1e-300)))


def suspects_text(rows: Sequence[Row], steps: int, threshold: float) -> str:
    """Who is suspect and since when, as a table in Markdown."""
    told = sorted((row for row in rows if row.verdict), key=lambda row: (row.verdict != "suspect", row.worker))
    if not told:
        return f"Nobody is suspect after {steps} steps."
    columns = ("worker", "verdict", "since step", "evidence", "dropped", "recently", "mean rank", "errors", "late")
    lines = [
        f"After {steps} steps. Evidence of {threshold:g} makes a suspect.",
        "",
        f"| {' | '.join(columns)} |",
        "|---:" * len(columns) + "|",
    ]
    return "\n".join([*lines, *(f"| {' | '.join(_cells(row))} |" for row in told)])


def _cells(row: Row) -> list[str]:
    def percent(share: float | None) -> str:
        return "-" if share is None else f"{share:.1%}"

    return [
        str(row.worker),
        row.verdict,
        "-" if row.since is None else str(row.since),
        f"{row.evidence:.3g}",
        percent(row.dropped),
        percent(row.recently),
        "-" if row.rank is None else f"{row.rank:.1f}",
        ", ".join(f"{number} {kind}" for kind, number in row.errors.items()) or "-",
        str(row.late),
    ]


class Metrics:
    """Serves the state of a run to Prometheus, on this machine's loopback, at http://127.0.0.1:port/metrics.

    Port 0 takes a free one; `port` says which.
    """

    def __init__(self, port: int, workers: int, earlier: Sequence[Record] = ()) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            raise ValueError(_missing("A metrics port", "prometheus_client", "prometheus")) from error
        self._lock = threading.Lock()  # a scrape comes from another thread
        self._workers = workers
        self._earlier = earlier
        self._totals = _Totals(workers, earlier)
        registry = CollectorRegistry()
        registry.register(cast("Collector", self))  # it asks for no more than `collect`
        try:
            self._server, self._thread = start_http_server(port, addr=HOST, registry=registry)
        except (OSError, OverflowError) as error:
            raise ValueError(
                f"Metrics need a port that is free on {HOST}. Found port {port}: {error}. "
                "Name another one, or 0 for any that is free."
            ) from error
        self.port: int = self._server.server_port

    def __call__(self, record: Record) -> None:
        with self._lock:
            if self._totals.last is not None and record.step <= self._totals.last.step:  # it is made again
                self._totals = _Totals(self._workers, (r for r in self._earlier if r.step < record.step))
            self._totals.add(record)

    def collect(self) -> list["Metric"]:
        """What Prometheus sees now."""
        with self._lock:
            return [_family(*parts) for parts in _samples(self._totals)]

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Totals:
    """What the records sum up to."""

    def __init__(self, workers: int, records: Iterable[Record]) -> None:
        self.ledger = Ledger(workers)
        self.steps = 0
        self.skipped = 0
        self.seconds: dict[str, float] = {}
        self.dropped = Counter(dict.fromkeys(range(workers), 0))
        self.late = Counter(dict.fromkeys(range(workers), 0))
        self.quarantined = Counter(dict.fromkeys(range(workers), 0))
        self.last: Record | None = None
        self.evaluated: Record | None = None  # the last one that was
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        self.ledger.add(record)
        self.steps += 1
        self.skipped += record.skipped is not None
        for phase, seconds in record.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
        self.dropped.update(record.dropped)
        self.late.update(record.late)
        self.quarantined.update(record.quarantined)
        self.last = record
        self.evaluated = record if record.evaluated else self.evaluated


Samples = dict[tuple[object, ...], float]
"""The values of the labels -> the value."""


def _samples(totals: _Totals) -> Iterator[tuple[str, str, Sequence[str], Samples]]:
    """Each metric: its name, what it says, its labels and its values."""
    yield "zeno_steps_total", "Steps made.", (), {(): totals.steps}
    yield "zeno_skipped_steps_total", "Steps that made no update.", (), {(): totals.skipped}
    yield "zeno_phase_seconds_total", "Seconds spent, by phase of a step.", ("phase",), _by_label(totals.seconds)
    yield "zeno_drops_total", "Steps judged and not kept at.", ("worker",), _by_label(totals.dropped)
    yield "zeno_late_replies_total", "Replies after their step was over.", ("worker",), _by_label(totals.late)
    yield "zeno_quarantined_steps_total", "Steps not asked at.", ("worker",), _by_label(totals.quarantined)
    if totals.last is not None:
        yield "zeno_learning_rate", "Learning rate of the last step.", (), {(): totals.last.lr}
        yield "zeno_kept_workers", "Candidates kept at the last step.", (), {(): sum(totals.last.kept or [])}
        yield "zeno_workers", "Workers alive, late or lost.", ("state",), _by_label(totals.last.workers)
    yield from _samples_of_quality(totals.evaluated)
    yield from _samples_of_rows(totals.ledger)


def _samples_of_quality(evaluated: Record | None) -> Iterator[tuple[str, str, Sequence[str], Samples]]:
    if evaluated is not None:
        loss = math.nan if evaluated.train_loss is None else evaluated.train_loss
        yield "zeno_train_loss", "Train loss when last evaluated; NaN when not finite.", (), {(): loss}
        yield "zeno_evaluated_step", "Step of the last evaluation, from 0.", (), {(): evaluated.step}
        if evaluated.accuracy is not None:
            yield "zeno_accuracy_ratio", "Test accuracy when last evaluated, 0 to 1.", (), {(): evaluated.accuracy}


def _samples_of_rows(ledger: Ledger) -> Iterator[tuple[str, str, Sequence[str], Samples]]:
    rows = ledger.rows
    errors: Samples = {(row.worker, kind): number for row in rows for kind, number in row.errors.items()}
    suspect: Samples = {(row.worker,): row.verdict == "suspect" for row in rows}
    evidence: Samples = {(row.worker,): row.evidence for row in rows}
    yield "zeno_errors_total", "Steps without a usable reply, by what was wrong.", ("worker", "kind"), errors
    yield "zeno_suspect", "1: suspect now. 0: not.", ("worker",), suspect
    yield "zeno_evidence", "Evidence against a worker, as an e-value.", ("worker",), evidence
    yield "zeno_evidence_threshold", "Evidence that makes a suspect.", (), {(): ledger.threshold}


def _by_label(values: Mapping[Any, float]) -> Samples:
    return {(label,): value for label, value in values.items()}


def _family(name: str, says: str, labels: Sequence[str], samples: Samples) -> "Metric":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(name, says, labels=labels)
    for values, number in samples.items():
        family.add_metric([str(value) for value in values], float(number))
    return family


def _missing(what: str, package: str, extra: str) -> str:
    return f"{what} needs {package}. Install it: pip install 'zeno-sgd[{extra}]'"
