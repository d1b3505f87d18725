"""Records, their files, and their summary."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from support.four_workers import RECORDS as FOUR_WORKERS
from zeno.records.folder import Journal, read
from zeno.records.record import Record, finite, summarize
from zeno.report.figures import curves
from zeno.report.run_view import RunView
from zeno.report.tables import run_table
from zeno.workers.reply import ErrorKind, ReplyError

DIED = ReplyError(ErrorKind.DIED, "died")
FIRST = Record(step=0, lr=0.1, kept=[True, True, False, False], scores=[1.0, 0.5, None, -1.0], faulty=[0, 3])
SECOND = Record(
    step=1,
    lr=0.1,
    kept=[True, False, False, False],
    scores=None,
    errors={2: DIED},
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
            assert read(tmp_path)[-1] == record, "every line is flushed"
    assert read(tmp_path) == [FIRST, SECOND, SKIPPED]
    assert (tmp_path / "run.toml").read_text() == "a = 1\n"
    with pytest.raises(ValueError, match="holds a run already"):
        Journal(tmp_path, "a = 2\n")


def test_an_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text(FIRST.to_json() + "\n" + SECOND.to_json()[:40])
    assert read(tmp_path) == [FIRST]


def test_lines_are_strict_json_without_nan() -> None:
    assert finite([1.0, float("nan"), float("inf"), -float("inf")]) == [1.0, None, None, None]
    line = json.loads(SECOND.to_json(), parse_constant=pytest.fail)
    assert line["errors"] == {"2": ["died", "died"]}


def test_records_of_a_later_version_can_be_read() -> None:
    line = json.loads(FIRST.to_json()) | {"something_new": 1}
    assert Record.from_json(json.dumps(line)) == FIRST


def test_records_of_an_earlier_version_can_be_read() -> None:
    line = json.loads(FIRST.to_json()) | {"standing": [0.5] * 4, "samples": 16, "unjudged": [2]}
    del line["weights"], line["own"]
    assert Record.from_json(json.dumps(line)) == FIRST


def test_records_of_an_earlier_version_have_errors_of_no_kind() -> None:
    line = json.loads(SECOND.to_json()) | {"errors": {"2": "died"}}
    assert Record.from_json(json.dumps(line)).errors == {2: ReplyError(ErrorKind.OTHER, "died")}


@pytest.mark.parametrize("error", [5, None, ["died", 5], ["no such kind", "died"], ["died"]])
def test_errors_that_no_version_wrote_are_not_read(error: object) -> None:
    line = json.loads(SECOND.to_json()) | {"errors": {"2": error}}
    with pytest.raises((TypeError, ValueError)):
        Record.from_json(json.dumps(line))


@pytest.mark.parametrize("kind", ErrorKind)
def test_errors_read_back_as_they_were_written(kind: ErrorKind) -> None:
    record = Record(0, 0.1, None, None, errors={3: ReplyError(kind, "why")})
    found = Record.from_json(record.to_json())
    assert found == record
    assert type(found.errors[3].kind) is ErrorKind
    assert str(found.errors[3]) == "why"


def test_seconds_do_not_make_records_differ() -> None:
    assert Record.from_json(SECOND.to_json().replace("2.0", "9.0")) == SECOND


def test_summaries_match_counts_by_hand() -> None:
    summary = summarize([FIRST, SECOND, SKIPPED])
    assert (summary.steps, summary.skipped) == (3, 1)
    assert (summary.accuracy, summary.train_loss) == (0.75, 0.25)
    assert summary.faulty_kept == 2 / 4  # of 0, 3 and 0, 3
    assert summary.faulty_among_kept == 2 / 3  # of 0, 1 and 0
    assert summary.seconds_per_step == 2.0
    assert summarize([]).accuracy is None


def test_a_summary_has_the_mean_share_of_the_server_in_the_updates() -> None:
    assert summarize([replace(FIRST, own=0.5), SECOND, SKIPPED]).own == 0.25
    assert summarize([SKIPPED]).own is None
    without, with_own = RunView("mean", {}, [FIRST], 4), RunView("own", {}, [replace(FIRST, own=0.5)], 4)
    assert run_table([without]).caption is None
    assert run_table([without, with_own]).caption == "mean share of the server's own gradient: own 50.0%"


def test_tables_and_curves_are_drawn_for_any_state_of_a_run(tmp_path: Path) -> None:
    runs = [
        RunView("done", {}, [FIRST, SECOND], 4),
        RunView("skipped", {}, [SKIPPED], 4),
        RunView("not started", {}, [], 4),
    ]
    assert run_table(runs).row_count == 3
    curves(runs, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_only_workers_that_were_asked_count_as_dropped() -> None:
    assert [record.dropped for record in FOUR_WORKERS] == [[2, 3], [2, 3], [], [], [1, 3]]
