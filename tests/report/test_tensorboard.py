"""What TensorBoard shows of a run."""

import math
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.four_workers import FIRST, LAST, RECORDS, SECOND, WARM_UP, FixedLedger
from zeno.records.ledger import Ledger
from zeno.records.record import Record
from zeno.report.tensorboard import TensorBoard
from zeno.report.worker_map import LEGEND


def write(folder: Path, records: Iterable[Record], ledger: Ledger | None = None, first_step: int = 0) -> None:
    """Writes the events of a run, as `train` does."""
    ledger = ledger or Ledger(4)
    with TensorBoard(folder, first_step) as board:
        for record in records:
            ledger.add(record)
            board(record, ledger)


def events_in(folder: Path) -> Any:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = loader.EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "images": 0})
    return events.Reload()


def texts_now_in(folder: Path, tag: str) -> list[tuple[int, str]]:
    """As TensorBoard loads them: the class above never purges texts."""
    loader = pytest.importorskip("tensorboard.backend.event_processing.plugin_event_accumulator")
    return text(loader.EventAccumulator(str(folder / "tensorboard")).Reload(), tag)


def scalars(events: Any, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events.Scalars(tag)]


def text(events: Any, tag: str) -> list[tuple[int, str]]:
    found = events.Tensors(f"{tag}/text_summary")
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in found]


def test_tensorboard_has_the_scalars_of_every_step(tmp_path: Path) -> None:
    write(tmp_path, [replace(FIRST, own=0.5), *RECORDS[1:]])
    events = events_in(tmp_path)
    assert scalars(events, "lr") == [(0, 0.5), (1, 0.25), (2, 0.25), (3, 0.125), (4, 0.125)]
    assert scalars(events, "kept") == [(0, 2.0), (1, 2.0), (2, 0.0), (3, 0.0), (4, 1.0)]
    assert scalars(events, "server/own_share") == [(0, 0.5), (1, 0.0), (3, 0.0), (4, 0.0)]
    assert scalars(events, "accuracy") == [(1, 0.75)]
    assert scalars(events, "train_loss")[0] == (1, 0.5)
    assert math.isnan(scalars(events, "train_loss")[1][1]), "evaluated, and not finite"
    assert len(scalars(events, "train_loss")) == 2
    assert scalars(events, "seconds/gradients") == [(0, 2.0), (1, 1.0), (2, 4.0)]
    assert scalars(events, "seconds/update") == [(0, 0.25), (1, 0.5)]
    assert scalars(events, "workers/alive") == [(0, 4.0), (1, 3.0), (2, 2.0), (4, 4.0)]
    assert scalars(events, "workers/late") == [(0, 0.0), (1, 0.0), (2, 1.0), (4, 0.0)]
    assert scalars(events, "workers/lost") == [(0, 0.0), (1, 1.0), (2, 1.0), (4, 0.0)]


def test_tensorboard_lists_suspects_at_evaluations_and_at_the_end(tmp_path: Path) -> None:
    write(tmp_path, RECORDS, FixedLedger())
    events = events_in(tmp_path)
    assert scalars(events, "suspects") == [(1, 1.0), (3, 1.0), (4, 1.0)]
    assert scalars(events, "evidence_log10/3") == [(1, 3.0), (3, 3.0), (4, 3.0)]
    assert scalars(events, "evidence_log10/2")[-1] == (4, 300.0), "infinite"
    steps, said = zip(*text(events, "suspects"), strict=True)
    assert steps == (1, 3, 4)
    lines = said[-1].splitlines()
    assert lines[0] == "After 5 steps. Evidence of 400 makes a suspect."
    assert lines[4:] == [
        "| 3 | suspect | failing | 2 | 1e+03 | 50% | - | - | 2 | 1 |",
        "| 1 | mended | failing | 7 | 5 | 50% | - | - | 2 | 1 |",
    ]
    assert text(events, "map") == [(0, LEGEND)]


def test_no_worker_is_suspect_after_one_step(tmp_path: Path) -> None:
    write(tmp_path, [FIRST])
    assert text(events_in(tmp_path), "suspects") == [(0, "No worker is suspect after 1 steps.")]


def test_the_rows_of_faulty_workers_are_darker_on_the_image(tmp_path: Path) -> None:
    from PIL import Image

    write(tmp_path, [replace(FIRST, step=step, evaluated=step == 19) for step in range(30)])
    images = events_in(tmp_path).Images("map")
    assert [image.step for image in images] == [19, 29]
    assert [image.width for image in images] == [160, 240]
    pixels = np.asarray(Image.open(BytesIO(images[-1].encoded_image_string)).convert("L"), dtype=float)
    by_worker = pixels.reshape(4, -1).mean(axis=1)
    assert by_worker.tolist() == [255, 221, 34, 0]


def test_images_of_a_long_run_get_rarer(tmp_path: Path) -> None:
    write(tmp_path, [replace(SECOND, step=step) for step in range(120)])
    steps = [image.step for image in events_in(tmp_path).Images("map")]
    assert steps == [*range(101), *range(102, 120, 2), 119], "1% of 100 steps is one, of 101 it is two; and the last"


def test_nothing_is_written_before_the_first_record(tmp_path: Path) -> None:
    write(tmp_path / "run", [])
    assert not (tmp_path / "run").exists()


def test_tensorboard_continues_after_a_resume(tmp_path: Path) -> None:
    write(tmp_path, RECORDS)
    began = int(time.time())
    while int(time.time()) == began:  # files are read in the order of the seconds in their names
        time.sleep(0.01)
    # The checkpoint is from step 3, so the steps from there on are made again.
    write(tmp_path, [*RECORDS[:3], replace(WARM_UP, lr=1.0, evaluated=False)], first_step=3)
    events = events_in(tmp_path)
    assert scalars(events, "lr") == [(0, 0.5), (1, 0.25), (2, 0.25), (3, 1.0)]
    assert scalars(events, "accuracy") == [(1, 0.75)]
    assert [step for step, _ in texts_now_in(tmp_path, "suspects")] == [1, 3]
    assert texts_now_in(tmp_path, "suspects")[-1][1].startswith("After 4 steps.")
    assert [(image.step, image.width) for image in events.Images("map")] == [(1, 16), (3, 32)]


def test_a_run_resumed_with_tensorboard_for_the_first_time_has_all_steps(tmp_path: Path) -> None:
    write(tmp_path, [*RECORDS[:4], LAST], first_step=4)
    events = events_in(tmp_path)
    assert [step for step, _ in scalars(events, "lr")] == [0, 1, 2, 3, 4]
    assert [image.step for image in events.Images("map")] == [1, 3, 4]


def test_earlier_steps_show_the_evidence_at_their_time(tmp_path: Path) -> None:
    write(tmp_path / "whole", RECORDS, FixedLedger())
    write(tmp_path / "resumed", RECORDS, FixedLedger(), first_step=4)
    evidence = scalars(events_in(tmp_path / "resumed"), "evidence_log10/1")
    assert evidence == scalars(events_in(tmp_path / "whole"), "evidence_log10/1")
    assert evidence[0][0] == 1
    assert evidence[0][1] == pytest.approx(math.log10(2)), "two records"


def test_importing_report_modules_imports_no_drawing_package() -> None:
    modules = "figures, matrix, prometheus, run_view, tables, tensorboard, worker_map"
    code = f"import sys; from zeno.report import {modules}; from zeno.report.page import live; "
    code += "assert not {'matplotlib', 'tensorboard', 'prometheus_client'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_package_is_named_with_what_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ValueError, match=r"needs tensorboard\. Install it: pip install 'zeno-sgd\[tensorboard\]'"):
        TensorBoard(tmp_path)
