"""Names of workers in tables, figures, pages and on the terminal, also hostile ones."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.commands import run
from support.made_runs import FAULTY_ONES, HOSTILE_NAME, JOINED, NAMES, append, made, named, watched, write
from zeno.records.record import Record
from zeno.report.figures import worker_maps
from zeno.report.page.html import build
from zeno.report.page.pack import pack
from zeno.report.run_view import read_run
from zeno.report.tables import ledger_markdown
from zeno.report.worker_map import WorkerMap


def test_names_and_workers_that_join_are_read_from_the_records(tmp_path: Path) -> None:
    view = read_run(write(tmp_path / "run", named()))
    assert (view.names, view.workers, view.notes, len(view.records)) == (NAMES, 12, [], 80)
    assert [view.ledger.names[worker] for worker in FAULTY_ONES] == view.ledger.suspect_names
    assert HOSTILE_NAME in view.ledger.suspect_names
    assert [row.steps for row in view.ledger.rows[10:]] == [55, 55]


@pytest.mark.parametrize(
    "wrong",
    [
        {0: ["same", "same", *NAMES[2:10]]},
        {0: ["\x1b[2J", *NAMES[1:10]]},
        {0: ["x" * 101, *NAMES[1:10]]},
        {0: NAMES[:9]},
        {JOINED: ["gpu-00", "gpu-99"]},
        {JOINED: NAMES[10:11]},
        {30: ["gpu-99"]},
    ],
    ids=["twice", "unprintable", "too long", "too few", "again", "one of two", "without a column"],
)
def test_names_that_no_server_writes_are_damage(tmp_path: Path, wrong: dict[int, list[str]]) -> None:
    records = [replace(record, joined=wrong.get(record.step, record.joined)) for record in named()]
    view = read_run(write(tmp_path / "run", records))
    (step,) = wrong
    assert len(view.records) == step
    assert view.notes == [f"records.jsonl is damaged at line {step + 1}: the rest is not shown."]


def test_workers_without_names_get_none_later(tmp_path: Path) -> None:
    records = [replace(record, joined=["late"] if record.step == 5 else []) for record in made()]
    assert len(read_run(write(tmp_path / "run", records)).records) == 5


def test_suspects_are_shown_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "run", named())
    assert run(monkeypatch, "suspects", folder) == 0
    shown = capsys.readouterr().out
    assert HOSTILE_NAME in shown
    assert "3 of 12 workers are suspect: " in shown
    assert "a-name-of-" in shown
    assert run(monkeypatch, "suspects", folder, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["suspect_names"] == [NAMES[worker] for worker in FAULTY_ONES]
    assert found["suspects"] == list(FAULTY_ONES)
    assert [row["name"] for row in found["workers"]] == NAMES


def test_markdown_keeps_names_as_they_are(tmp_path: Path) -> None:
    lines = ledger_markdown(read_run(write(tmp_path / "run", named())).ledger).splitlines()
    (hostile,) = [line for line in lines if "img" in line]
    assert hostile.startswith(r'| \<img src=x onerror=alert(1)\> \[red\]$x$\|"{{DATA}}\</script\> | suspect |')
    assert hostile.replace(r"\|", "").count("|") == lines[2].count("|")


def test_the_page_holds_the_names_and_no_cells_before_a_worker_joined(tmp_path: Path) -> None:
    view = read_run(write(tmp_path / "run", named()))
    html = build([view])
    assert html.count("onerror=alert") == html.count("\\u003cimg src=x onerror=alert(1)\\u003e") > 0
    wide = [record.widened(12) for record in view.records]
    assert pack(view.records, 12, 1) == pack(wide, 12, 1)
    assert [wide[0].quarantined, wide[JOINED].quarantined] == [[10, 11], []]


def test_a_live_page_is_sent_anew_when_a_worker_joins(tmp_path: Path) -> None:
    records = named()
    folder = write(tmp_path / "run", records[:20])
    with watched([folder]) as (_, live):
        assert live.since("run", 0, 0)["run"]["workers"] == 10
        append(folder, records[20:JOINED])
        assert live.since("run", 0, 20)["run"]["from"] == 19
        append(folder, records[JOINED:40])
        found = live.since("run", 0, JOINED)["run"]
        assert (found["from"], found["workers"], found["generation"]) == (0, 12, 1)


def test_a_live_page_gets_what_was_measured_after_its_last_step(tmp_path: Path) -> None:
    records = named()
    folder = write(tmp_path / "run", records[:21])
    with watched([folder]) as (_, live):
        before = live.since("run", 0, 0)
        append(folder, [replace(records[20], accuracy=0.5)])
        after = live.since("run", 0, 21)
    assert [answer["runs"][0]["num_lines"] for answer in (before, after)] == [21, 22]
    assert (after["run"]["from"], after["run"]["summary"]["accuracy"]) == (20, 0.5)


def test_a_map_gets_rows_for_workers_that_join(tmp_path: Path) -> None:
    growing, wide = WorkerMap(0), WorkerMap(12)
    for record in named():
        growing.add(record)
        wide.add(record)
    np.testing.assert_array_equal(growing.image(), wide.image())
    worker_maps([read_run(write(tmp_path / "run", named()))], tmp_path / "workers.png", "names with $ and \\")
    assert (tmp_path / "workers.png").stat().st_size > 10_000


def test_skipped_steps_come_before_the_first_with_columns(tmp_path: Path) -> None:
    skipped = Record(0, 0.1, None, None, skipped="too few", joined=NAMES[:10])
    records = [skipped, *(replace(record, joined=[]) for record in named()[1:20])]
    view = read_run(write(tmp_path / "run", records))
    assert (view.workers, len(view.records)) == (10, 20)
    build([view])
