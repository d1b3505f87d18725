"""What TensorBoard and Prometheus see of a run."""

import math
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zeno.records.folder import Record
from zeno.records.ledger import Row
from zeno.report import telemetry
from zeno.report.telemetry import Metrics, TensorBoard
from zeno.report.worker_map import LEGEND, Map

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
    errors={2: "died"},
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
    errors={2: "died"},
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
    unjudged=[1],
    quarantined=[2],
    workers={"alive": 4, "late": 0, "lost": 0},
)
RECORDS = [FIRST, SECOND, SKIPPED, WARM_UP, LAST]


def row(worker: int, verdict: str = "", since: int | None = None, evidence: float = 1.0, **errors: int) -> Row:
    return Row(worker, verdict, since, evidence, 5, 0.5, None, None, 2, errors, 1, 0, None)


class HandWritten:
    """A ledger that says the same of any records; the evidence against worker 1 is how many there are."""

    threshold = 400.0

    def __init__(self, workers: int) -> None:
        assert workers == 4
        self.num_records = 0

    def add(self, record: Record) -> None:
        self.num_records += 1

    @property
    def rows(self) -> list[Row]:
        mended, failing = row(1, "mended", 7, self.num_records), row(2, evidence=math.inf, died=2, late=1)
        return [row(0), mended, failing, row(3, "suspect", 2, 1e3)]


@pytest.fixture
def ledger_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "Ledger", HandWritten)


def test_drops_are_of_workers_that_were_judged() -> None:
    assert [record.dropped for record in RECORDS] == [[2, 3], [2, 3], [], [], [3]]


# The map


def colours_of(picture: Map, columns: int, workers: int = 4) -> "np.ndarray[Any, Any]":
    """[m, columns, 3]: one pixel of each worker and column; all pixels of a cell are equal."""
    image = picture.image()
    cells = image.reshape(workers, image.shape[0] // workers, columns, image.shape[1] // columns, 3)
    assert (cells == cells[:, :1, :, :1]).all()
    return cells[:, 0, :, 0]


def test_the_map_is_light_for_kept_and_dark_for_dropped_by_their_place() -> None:
    picture = Map(4)
    for record in RECORDS:
        picture.add(record)
    red, blue = (217, 38, 38), (89, 128, 191)  # 255 * 0.85, and so on
    between = (128, 147, 178)  # 255 * (0.65 + 0.35) / 2, and so on
    shades: list[list[Any]] = [
        # Places 1, 2/3, 1/3 and 0: kept from 0.6 to 1, dropped from 0 to 0.4.
        [255, 153 + 68, 34, 0],
        # Worker 1 is best of three, and 3 worst.
        [153 + 51, 255, red, 0],
        [blue, blue, red, blue],
        # Nobody is kept, and there are no scores: place 0.5 from 0.3 to 1.
        [166, 166, 166, 166],
        # Two were not judged: half blue, half the shade before.
        [153 + 51, between, between, 51],
    ]
    expected = [[(shade,) * 3 if isinstance(shade, int) else shade for shade in column] for column in shades]
    np.testing.assert_allclose(colours_of(picture, 5).transpose(1, 0, 2), np.array(expected), atol=1)  # of rounding


def test_candidates_without_a_score_are_the_darkest_and_ties_are_equal() -> None:
    picture = Map(4)
    picture.add(replace(FIRST, scores=[2.0, 2.0, None, 1.0]))
    assert colours_of(picture, 1)[:, 0, 0].tolist() == [255, 255, 0, 0]


def test_a_long_map_stays_small_and_shows_means() -> None:
    picture = Map(2)
    one = Record(step=0, lr=0.1, kept=[True, False], scores=None)  # 0.8 and 0.2
    other = replace(one, kept=[False, True])
    for step in range(1000):
        picture.add(one if step % 2 else other)
    exact = colours_of(picture, 1000, workers=2)
    assert exact[:, :2, 0].tolist() == [[51, 204], [204, 51]]
    picture.add(one)
    halved = colours_of(picture, 501, workers=2)
    assert (halved[:, :500] == 128).all(), "two steps of a column, 0.2 and 0.8"
    assert halved[:, 500, 0].tolist() == [204, 51], "one step of a column"
    for _ in range(2999):
        picture.add(one)
    some = colours_of(picture, 1000, workers=2)[:, [0, 249, 250, 999], 0]
    assert some.tolist() == [[128, 128, 204, 204], [128, 128, 51, 51]]
    assert picture.image().shape[1] == 1000


# TensorBoard


def events_in(folder: Path) -> Any:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = loader.EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "images": 0})
    return events.Reload()


def texts_now_in(folder: Path, tag: str) -> list[tuple[int, str]]:
    """As TensorBoard itself loads them: the class above never drops a text."""
    loader = pytest.importorskip("tensorboard.backend.event_processing.plugin_event_accumulator")
    return text(loader.EventAccumulator(str(folder / "tensorboard")).Reload(), tag)


def scalars(events: Any, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events.Scalars(tag)]


def text(events: Any, tag: str) -> list[tuple[int, str]]:
    found = events.Tensors(f"{tag}/text_summary")
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in found]


def test_tensorboard_has_the_scalars_of_every_step(tmp_path: Path) -> None:
    with TensorBoard(tmp_path, 4) as board:
        for record in RECORDS:
            board(record)
    events = events_in(tmp_path)
    assert scalars(events, "lr") == [(0, 0.5), (1, 0.25), (2, 0.25), (3, 0.125), (4, 0.125)]
    assert scalars(events, "kept") == [(0, 2.0), (1, 2.0), (2, 0.0), (3, 0.0), (4, 1.0)]
    assert scalars(events, "accuracy") == [(1, 0.75)]
    assert scalars(events, "train_loss")[0] == (1, 0.5)
    assert math.isnan(scalars(events, "train_loss")[1][1]), "evaluated, and not finite"
    assert len(scalars(events, "train_loss")) == 2
    assert scalars(events, "seconds/gradients") == [(0, 2.0), (1, 1.0), (2, 4.0)]
    assert scalars(events, "seconds/update") == [(0, 0.25), (1, 0.5)]
    assert scalars(events, "workers/alive") == [(0, 4.0), (1, 3.0), (2, 2.0), (4, 4.0)]
    assert scalars(events, "workers/late") == [(0, 0.0), (1, 0.0), (2, 1.0), (4, 0.0)]
    assert scalars(events, "workers/lost") == [(0, 0.0), (1, 1.0), (2, 1.0), (4, 0.0)]


@pytest.mark.usefixtures("ledger_by_hand")
def test_tensorboard_says_who_is_suspect_at_evaluations_and_at_the_end(tmp_path: Path) -> None:
    with TensorBoard(tmp_path, 4) as board:
        for record in RECORDS:
            board(record)
    events = events_in(tmp_path)
    assert scalars(events, "suspects") == [(1, 1.0), (3, 1.0), (4, 1.0)]
    assert scalars(events, "evidence_log10/3") == [(1, 3.0), (3, 3.0), (4, 3.0)]
    assert scalars(events, "evidence_log10/2")[-1] == (4, 300.0), "infinite"
    steps, said = zip(*text(events, "suspects"), strict=True)
    assert steps == (1, 3, 4)
    lines = said[-1].splitlines()
    assert lines[0] == "After 5 steps. Evidence of 400 makes a suspect."
    assert lines[4:] == [
        "| 3 | suspect | 2 | 1e+03 | 50.0% | - | - | - | 1 |",
        "| 1 | mended | 7 | 5 | 50.0% | - | - | - | 1 |",
    ]
    assert text(events, "map") == [(0, LEGEND)]


def test_nobody_is_suspect_in_a_few_steps(tmp_path: Path) -> None:
    with TensorBoard(tmp_path, 4) as board:
        board(FIRST)
    assert text(events_in(tmp_path), "suspects") == [(0, "Nobody is suspect after 1 steps.")]


def test_the_rows_of_faulty_workers_are_darker_on_the_image(tmp_path: Path) -> None:
    from PIL import Image

    with TensorBoard(tmp_path, 4) as board:
        for step in range(30):
            board(replace(FIRST, step=step, evaluated=step == 19))
    images = events_in(tmp_path).Images("map")
    assert [image.step for image in images] == [19, 29]
    assert [image.width for image in images] == [160, 240]
    pixels = np.asarray(Image.open(BytesIO(images[-1].encoded_image_string)).convert("L"), dtype=float)
    by_worker = pixels.reshape(4, -1).mean(axis=1)
    assert by_worker.tolist() == [255, 221, 34, 0]


def test_images_of_a_long_run_get_rarer(tmp_path: Path) -> None:
    with TensorBoard(tmp_path, 4) as board:
        for record in (replace(SECOND, step=step) for step in range(120)):
            board(record)
    steps = [image.step for image in events_in(tmp_path).Images("map")]
    assert steps == [*range(101), *range(102, 120, 2), 119], "1% of 100 steps is one, of 101 it is two; and the last"


def test_nothing_is_written_before_the_first_record(tmp_path: Path) -> None:
    with TensorBoard(tmp_path / "run", 4, earlier=RECORDS):
        pass
    assert not (tmp_path / "run").exists()


def test_tensorboard_goes_on_after_a_resume(tmp_path: Path) -> None:
    with TensorBoard(tmp_path, 4) as board:
        for record in RECORDS:
            board(record)
    began = int(time.time())
    while int(time.time()) == began:  # files are read in the order of the seconds in their names
        time.sleep(0.01)
    with TensorBoard(tmp_path, 4, earlier=RECORDS) as board:  # its checkpoint is of step 3
        board(replace(WARM_UP, lr=1.0, evaluated=False))
    events = events_in(tmp_path)
    assert scalars(events, "lr") == [(0, 0.5), (1, 0.25), (2, 0.25), (3, 1.0)]
    assert scalars(events, "accuracy") == [(1, 0.75)]
    assert [step for step, _ in texts_now_in(tmp_path, "suspects")] == [1, 3]
    assert texts_now_in(tmp_path, "suspects")[-1][1].endswith("after 4 steps.")
    assert [(image.step, image.width) for image in events.Images("map")] == [(1, 16), (3, 32)]


def test_a_run_that_is_resumed_with_tensorboard_for_the_first_time_has_all_steps(tmp_path: Path) -> None:
    with TensorBoard(tmp_path, 4, earlier=RECORDS[:4]) as board:
        board(LAST)
    events = events_in(tmp_path)
    assert [step for step, _ in scalars(events, "lr")] == [0, 1, 2, 3, 4]
    assert [image.step for image in events.Images("map")] == [1, 3, 4]


# Prometheus


def scrape(metrics: Metrics) -> dict[str, float]:
    """Name and labels, as they are written -> value."""
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


def test_metrics_sum_up_the_records() -> None:
    with Metrics(0, 4) as metrics:
        before = scrape(metrics)
        for record in RECORDS[:3]:
            metrics(record)
        found = scrape(metrics)
        metrics(WARM_UP)
        metrics(LAST)
        later = scrape(metrics)
    assert before["zeno_steps_total"] == before["zeno_drops_total worker=3"] == 0
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
    assert [later[f"zeno_drops_total worker={worker}"] for worker in range(4)] == [0, 0, 2, 3]
    assert [later[f"zeno_quarantined_steps_total worker={worker}"] for worker in range(4)] == [0, 0, 1, 0]
    assert later["zeno_kept_workers"] == 1
    assert math.isnan(later["zeno_train_loss"])
    assert "zeno_accuracy_ratio" not in later, "the last evaluation had none"


@pytest.mark.usefixtures("ledger_by_hand")
def test_metrics_say_what_the_ledger_says() -> None:
    with Metrics(0, 4, earlier=[FIRST]) as metrics:
        metrics(SECOND)
        found = scrape(metrics)
    assert [found[f"zeno_suspect worker={worker}"] for worker in range(4)] == [0, 0, 0, 1]
    assert [found[f"zeno_evidence worker={worker}"] for worker in range(4)] == [1, 2, math.inf, 1000]
    errors = {name: value for name, value in found.items() if name.startswith("zeno_errors_total")}
    assert errors == {"zeno_errors_total kind=died worker=2": 2, "zeno_errors_total kind=late worker=2": 1}


def test_metrics_of_a_resumed_run_go_on_from_its_totals() -> None:
    with Metrics(0, 4, earlier=RECORDS) as metrics:
        assert scrape(metrics)["zeno_steps_total"] == 5
        assert scrape(metrics)["zeno_drops_total worker=3"] == 3
        metrics(replace(FIRST, step=5))
        found = scrape(metrics)
        assert found["zeno_steps_total"] == 6
        assert found["zeno_drops_total worker=3"] == 4
        assert found["zeno_phase_seconds_total phase=gradients"] == 9


def test_steps_that_are_made_again_count_once() -> None:
    with Metrics(0, 4, earlier=RECORDS) as metrics:
        metrics(replace(SKIPPED, seconds={"gradients": 8.0}))  # its checkpoint was of step 2
        found = scrape(metrics)
    assert found["zeno_steps_total"] == 3
    assert found["zeno_skipped_steps_total"] == 1
    assert found["zeno_phase_seconds_total phase=gradients"] == 11
    assert found["zeno_drops_total worker=3"] == 2


def test_metrics_are_served_on_loopback_only_and_the_port_is_free_after_them() -> None:
    with Metrics(0, 4) as metrics:
        port = metrics.port
        assert port > 0
        assert metrics._server.server_address == ("127.0.0.1", port)
        with pytest.raises(OSError), socket.create_connection(("127.0.0.2", port), timeout=2):
            pass
    assert not metrics._thread.is_alive()
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
        pass
    with Metrics(port, 4) as again:
        assert again.port == port


def test_a_port_that_is_taken_is_named() -> None:
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=rf"Found port {port}: .*in use.* Name another one, or 0"):
            Metrics(port, 4)
    with pytest.raises(ValueError, match="Found port 70000"):
        Metrics(70000, 4)


# What is missing


def test_importing_telemetry_imports_neither_package() -> None:
    code = "import sys, zeno.telemetry; assert not {'tensorboard', 'prometheus_client'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_package_that_is_missing_is_named_with_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ValueError, match=r"needs tensorboard\. Install it: pip install 'zeno-sgd\[tensorboard\]'"):
        TensorBoard(tmp_path, 4)
    with pytest.raises(ValueError, match=r"needs prometheus_client\. .* pip install 'zeno-sgd\[prometheus\]'"):
        Metrics(0, 4)
