"""The state of a run for Prometheus."""

import math
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import SplitResult

from zeno.records.ledger import Ledger
from zeno.records.record import Record
from zeno.records.row import Row
from zeno.report.loopback import Answer, LoopbackServer

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.registry import Collector


class Metrics(AbstractContextManager["Metrics"]):
    """Serves the state of a run at http://127.0.0.1:port/metrics; port 0 takes a free one.

    It is called with every record of a run, also with those before a resume, and the ledger after it.
    """

    def __init__(self, port: int) -> None:
        try:
            from prometheus_client import CollectorRegistry
        except ImportError as error:
            raise ValueError(
                "A metrics port needs prometheus_client. Install it: pip install 'zeno-sgd[prometheus]'"
            ) from error
        self._ledger: Ledger | None = None
        self._skipped = 0
        self._seconds: dict[str, float] = {}
        self._dropped: Counter[int] = Counter()
        self._last: Record | None = None
        self._evaluated: Record | None = None  # the last one with a loss
        self._accuracy: float | None = None  # the last one
        self._lock = threading.Lock()  # a scrape comes from another thread
        self._registry = CollectorRegistry()
        self._registry.register(cast("Collector", self))  # which only calls `collect`
        self._server = LoopbackServer("The metrics page", port, self._answer)
        self.port = self._server.server_port

    def __call__(self, record: Record, ledger: Ledger) -> None:
        with self._lock:
            self._ledger = ledger
            self._skipped += record.skipped is not None
            for phase, seconds in record.seconds.items():
                self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds
            self._dropped.update(record.dropped)
            self._last = record
            self._evaluated = record if record.evaluated else self._evaluated
            self._accuracy = self._accuracy if record.accuracy is None else record.accuracy

    def _answer(self, url: SplitResult) -> Answer:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        if url.path not in ("/", "/metrics"):
            return Answer(HTTPStatus.NOT_FOUND, "Only /metrics exists.")
        return Answer(HTTPStatus.OK, generate_latest(self._registry).decode(), CONTENT_TYPE_LATEST)

    def collect(self) -> list["Metric"]:
        """The current metrics, as Prometheus reads them."""
        with self._lock:
            return list(self._families())

    def _families(self) -> Iterator["Metric"]:
        last, evaluated, ledger = self._last, self._evaluated, self._ledger
        yield _family("zeno_steps_total", "Steps made.", 0 if ledger is None else ledger.steps)
        yield _family("zeno_skipped_steps_total", "Steps that made no update.", self._skipped)
        yield _family("zeno_phase_seconds_total", "Seconds spent, by phase of a step.", self._seconds, "phase")
        if ledger is not None:
            yield from self._of_workers(ledger.rows)
            yield _family("zeno_evidence_threshold", "Evidence that makes a suspect.", ledger.threshold)
        if last is not None:
            if last.lr is not None:
                yield _family("zeno_learning_rate", "Learning rate of the last step.", last.lr)
            yield _family("zeno_kept_workers", "Candidates kept at the last step.", sum(last.kept or []))
            yield _family("zeno_own_share_ratio", "Share of the server's own gradient in the last step.", last.own)
            yield _family("zeno_workers", "Workers alive, late or lost.", last.workers, "state")
        if evaluated is not None:
            loss = math.nan if evaluated.train_loss is None else evaluated.train_loss
            yield _family("zeno_train_loss", "Train loss when last evaluated; NaN when not finite.", loss)
            yield _family("zeno_evaluated_step", "Step of the last evaluation, from 0.", evaluated.step)
        if self._accuracy is not None:
            yield _family("zeno_accuracy_ratio", "Test accuracy when last evaluated, 0 to 1.", self._accuracy)

    def _of_workers(self, rows: Sequence[Row]) -> Iterator["Metric"]:
        dropped = {row.name: self._dropped[row.worker] for row in rows}
        unasked = {row.name: row.quarantined for row in rows}
        errors = {(row.name, kind): number for row in rows for kind, number in row.errors.items()}
        suspect = {row.name: row.verdict == "suspect" for row in rows}
        evidence = {row.name: row.evidence for row in rows}
        late = {row.name: row.late for row in rows}
        yield _family("zeno_drops_total", "Steps at which a worker was asked and not kept.", dropped, "worker")
        yield _family("zeno_late_replies_total", "Replies after their step was over.", late, "worker")
        yield _family("zeno_quarantined_steps_total", "Steps at which a worker was not asked.", unasked, "worker")
        yield _family("zeno_errors_total", "Steps without a usable reply, by kind.", errors, "worker", "kind")
        yield _family("zeno_suspect", "1: suspect now. 0: not.", suspect, "worker")
        left_out = {row.name: row.left_out for row in rows}
        yield _family("zeno_left_out", "1: left out of nearly all updates lately. 0: not.", left_out, "worker")
        yield _family("zeno_evidence", "Evidence against a worker, as an e-value.", evidence, "worker")

    def __exit__(self, *exception: object) -> None:
        self._server.close()


def _family(name: str, text: str, values: float | Mapping[Any, float], *labels: str) -> "Metric":
    """A metric with one value, or values by label (by a tuple if there are several labels)."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    if not isinstance(values, Mapping):
        values = {(): values}
    family = (CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily)(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric([str(label) for label in (key if isinstance(key, tuple) else (key,))], float(value))
    return family
