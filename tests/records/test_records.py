"""What is written down, and what is made of it."""

import json
from pathlib import Path

import pytest

from zeno.records.folder import Journal, Record, finite, read, summarize
from zeno.report.tables import curves, table

FIRST = Record(step=0, lr=0.1, kept=[True, True, False, False], scores=[1.0, 0.5, None, -1.0], faulty=[0, 3])
SECOND = Record(
    step=1,
    lr=0.1,
    kept=[True, False, False, False],
    scores=None,
    errors={2: "died"},
    faulty=[0, 3],
    evaluated=True,
    train_loss=0.25,
    accuracy=0.75,
    seconds={"gradients": 2.0, "update": 1.0},
)
SKIPPED = Record(step=2, lr=0.1, kept=None, scores=None, skipped="too few", faulty=[0, 3], seconds={"gradients": 3.0})


def test_records_read_back_as_they_were_written(tmp_path: Path) -> None:
    with Journal(tmp_path, "a = 1\n") as journal:
        for record in (FIRST, SECOND, SKIPPED):
            journal.append(record)
            assert read(tmp_path)[-1] == record, "every line is there as soon as it is written"
    assert read(tmp_path) == [FIRST, SECOND, SKIPPED]
    assert (tmp_path / "run.toml").read_text() == "a = 1\n"
    with pytest.raises(ValueError, match="holds a run already"):
        Journal(tmp_path, "a = 2\n")


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text(FIRST.to_json() + "\n" + SECOND.to_json()[:40])
    assert read(tmp_path) == [FIRST]


def test_lines_are_strict_json_without_nan() -> None:
    assert finite([1.0, float("nan"), float("inf"), -float("inf")]) == [1.0, None, None, None]
    line = json.loads(SECOND.to_json(), parse_constant=pytest.fail)
    assert line["errors"] == {"2": "died"}


def test_records_of_a_later_version_can_be_read() -> None:
    line = json.loads(FIRST.to_json()) | {"something_new": 1}
    assert Record.from_json(json.dumps(line)) == FIRST


def test_seconds_do_not_make_records_differ() -> None:
    assert Record.from_json(SECOND.to_json().replace("2.0", "9.0")) == SECOND


def test_summaries_count_by_hand() -> None:
    summary = summarize([FIRST, SECOND, SKIPPED])
    assert (summary.steps, summary.skipped) == (3, 1)
    assert (summary.accuracy, summary.train_loss) == (0.75, 0.25)
    assert summary.faulty_kept == 2 / 4  # of 0, 3 and 0, 3
    assert summary.faulty_among_kept == 2 / 3  # of 0, 1 and 0
    assert summary.seconds_per_step == 2.0
    assert summarize([]).accuracy is None


def test_tables_and_curves_are_drawn_for_any_state_of_a_run(tmp_path: Path) -> None:
    runs = {"done": [FIRST, SECOND], "skipped": [SKIPPED], "not started": []}
    assert table(runs).row_count == 3
    curves(runs, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
