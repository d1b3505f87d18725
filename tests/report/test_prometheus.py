"""What Prometheus reads about a run."""

import math
import socket
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from support.four_workers import FIRST, LAST, RECORDS, SECOND, WARM_UP, FixedLedger
from zeno.records.ledger import Ledger
from zeno.records.record import Record
from zeno.report.prometheus import Metrics


class Run:
    """Passes records to a ledger and to metrics, as `train` does."""

    def __init__(self, metrics: Metrics, ledger: Ledger) -> None:
        self.metrics = metrics
        self.ledger = ledger

    def add(self, *records: Record) -> dict[str, float]:
        """Adds the records; returns what a scrape finds then."""
        for record in records:
            self.ledger.add(record)
            self.metrics(record, self.ledger)
        return scrape(self.metrics)


@contextmanager
def running(ledger: Ledger | None = None) -> Iterator[Run]:
    ledger = ledger or Ledger(4)
    with Metrics(0) as metrics:
        yield Run(metrics, ledger)


def scrape(metrics: Metrics) -> dict[str, float]:
    """Name and labels, as text -> value."""
    parser = pytest.importorskip("prometheus_client.parser")
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=5) as answer:
        families = list(parser.text_string_to_metric_families(answer.read().decode()))
    assert all(family.documentation for family in families)
    samples = [(family.type, sample) for family in families for sample in family.samples]
    assert all((kind == "counter") == sample.name.endswith("_total") for kind, sample in samples)
    return {
        sample.name + "".join(f" {label}={value}" for label, value in sorted(sample.labels.items())): sample.value
        for _, sample in samples
    }


def test_metrics_sum_over_the_records() -> None:
    with running() as run:
        before = run.add()
        found = run.add(*RECORDS[:3])
        later = run.add(WARM_UP, replace(LAST, own=0.5))
    assert before["zeno_steps_total"] == before["zeno_skipped_steps_total"] == 0
    assert not {"zeno_train_loss", "zeno_accuracy_ratio", "zeno_learning_rate"} & set(before)
    expected = {
        "zeno_steps_total": 3,
        "zeno_skipped_steps_total": 1,
        "zeno_phase_seconds_total phase=gradients": 7,
        "zeno_phase_seconds_total phase=update": 0.75,
        "zeno_drops_total worker=0": 0,
        "zeno_drops_total worker=1": 0,
        "zeno_drops_total worker=2": 2,
        "zeno_drops_total worker=3": 2,
        "zeno_late_replies_total worker=0": 0,
        "zeno_late_replies_total worker=2": 2,
        "zeno_learning_rate": 0.25,
        "zeno_kept_workers": 0,
        "zeno_workers state=alive": 2,
        "zeno_workers state=late": 1,
        "zeno_workers state=lost": 1,
        "zeno_accuracy_ratio": 0.75,
        "zeno_train_loss": 0.5,
        "zeno_evaluated_step": 1,
        "zeno_evidence_threshold": 400,
    }
    assert {name: found[name] for name in expected} == expected
    assert [later[f"zeno_drops_total worker={worker}"] for worker in range(4)] == [0, 1, 2, 3]
    assert [later[f"zeno_quarantined_steps_total worker={worker}"] for worker in range(4)] == [0, 0, 1, 0]
    assert later["zeno_kept_workers"] == 1
    assert (found["zeno_own_share_ratio"], later["zeno_own_share_ratio"]) == (0, 0.5)
    assert math.isnan(later["zeno_train_loss"])
    assert later["zeno_accuracy_ratio"] == 0.75, "the last evaluation had none, so this is from the one before"


def test_metrics_show_the_rows_of_the_ledger() -> None:
    with running(FixedLedger()) as run:
        found = run.add(FIRST, SECOND)
    assert [found[f"zeno_suspect worker={worker}"] for worker in range(4)] == [0, 0, 0, 1]
    assert [found[f"zeno_evidence worker={worker}"] for worker in range(4)] == [1, 2, math.inf, 1000]
    errors = {name: value for name, value in found.items() if name.startswith("zeno_errors_total")}
    assert errors == {"zeno_errors_total kind=died worker=2": 2, "zeno_errors_total kind=late worker=2": 1}


def test_metrics_of_a_resumed_run_continue_from_its_totals() -> None:
    with running() as run:
        found = run.add(*RECORDS)
        assert found["zeno_steps_total"] == 5
        assert found["zeno_drops_total worker=3"] == 3
        found = run.add(replace(FIRST, step=5))
        assert found["zeno_steps_total"] == 6
        assert found["zeno_drops_total worker=3"] == 4
        assert found["zeno_phase_seconds_total phase=gradients"] == 9


def test_metrics_are_served_on_loopback_only_and_release_their_port() -> None:
    with Metrics(0) as metrics:
        port = metrics.port
        assert port > 0
        assert metrics._server.server_address == ("127.0.0.1", port)
        with pytest.raises(OSError), socket.create_connection(("127.0.0.2", port), timeout=2):
            pass
    assert not metrics._server._thread.is_alive()
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
        pass
    with Metrics(port) as again:
        assert again.port == port


def test_a_port_in_use_raises_with_a_remedy() -> None:
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=rf"Found port {port}: .*in use.* Name another one, or 0"):
            Metrics(port)
    with pytest.raises(ValueError, match="Found port 70000"):
        Metrics(70000)


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ValueError, match=r"needs prometheus_client\. .* pip install 'zeno-sgd\[prometheus\]'"):
        Metrics(0)
