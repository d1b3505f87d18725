"""The one view of a run, and the one ledger in it."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from support.commands import run
from support.four_workers import RECORDS, FixedLedger
from support.made_runs import append, made, run_of, watched, write
from zeno.records.folder import CHECKPOINTS
from zeno.records.ledger import Ledger, ledger_of
from zeno.report.figures import worker_maps
from zeno.report.page.html import build
from zeno.report.run_view import RunView, read_run
from zeno.report.tables import ledger_columns, ledger_markdown, ledger_table, run_table


@pytest.fixture
def ledgers(monkeypatch: pytest.MonkeyPatch) -> list[Ledger]:
    """The ledgers made during the test; one that takes in no record costs nothing."""
    found: list[Ledger] = []
    create = Ledger.__init__

    def noted(self: Ledger, workers: int, **settings: Any) -> None:
        found.append(self)
        create(self, workers, **settings)

    monkeypatch.setattr(Ledger, "__init__", noted)
    return found


def test_tables_figures_and_pages_share_one_ledger(tmp_path: Path, ledgers: list[Ledger]) -> None:
    view = run_of(made())
    run_table([view])
    ledger_table(view.ledger)
    worker_maps([view], tmp_path / "workers.png")
    build([view])
    assert len(ledgers) == 1


def test_train_makes_one_ledger_for_its_report(
    tmp_path: Path, ledgers: list[Ledger], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "train", "--workers", 4, "--steps", 3, "--out", tmp_path / "run") == 0
    assert [ledger.steps for ledger in ledgers if ledger.steps] == [3]
    assert "No worker is suspect." in capsys.readouterr().out


def test_quarantine_tensorboard_and_prometheus_share_the_ledger_of_the_run(
    tmp_path: Path, ledgers: list[Ledger], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--quarantine", "--tensorboard", "--metrics-port", 0]
    assert run(monkeypatch, "train", "--workers", 4, "--steps", 3, *flags, "--out", tmp_path / "run") == 0
    assert [ledger.steps for ledger in ledgers if ledger.steps] == [3, 3], "one while training, one for the report"
    assert run(monkeypatch, "train", "--resume", tmp_path / "run", "--steps", 5) == 0
    assert [ledger.steps for ledger in ledgers[2:]] == [5, 5]
    shutil.rmtree(tmp_path / "run" / CHECKPOINTS)
    assert run(monkeypatch, "train", "--resume", tmp_path / "run") == 0
    assert [ledger.steps for ledger in ledgers[4:]] == [5, 5], "steps that are made again count once"
    capsys.readouterr()


def test_a_comparison_makes_one_ledger_per_run(
    tmp_path: Path, ledgers: list[Ledger], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = ["--rule", "mean", "--rule", "zeno"]
    assert run(monkeypatch, "compare", *rules, "--steps", 2, "--out", tmp_path / "runs") == 0
    assert [ledger.steps for ledger in ledgers if ledger.steps] == [2, 2, 2], "also of the run without faults"
    capsys.readouterr()


def test_the_ledger_of_a_view_follows_its_records(tmp_path: Path, ledgers: list[Ledger]) -> None:
    records = made()
    view = RunView("run", {}, records[:30], 12)
    assert view.ledger.steps == 30
    view.records += records[30:]
    rows = view.ledger.rows
    assert len(ledgers) == 1
    assert rows == ledger_of(records, 12).rows


def test_the_live_view_makes_one_ledger_per_run(tmp_path: Path, ledgers: list[Ledger]) -> None:
    folder = write(tmp_path / "run", made()[:20])
    with watched([folder]) as (_, live):
        live.page()
        append(folder, made()[20:40])
        live.since("run", 0, 20)
    assert [ledger.steps for ledger in ledgers if ledger.steps] == [40]


def test_without_settings_the_records_tell_the_number_of_workers(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", made()[29:40])
    (folder / "run.toml").unlink()
    lines = [record.to_json().replace(f'"step":{record.step}', f'"step":{i}') for i, record in enumerate(made()[29:40])]
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n")
    view = read_run(folder)
    assert (view.workers, len(view.records), view.planned) == (12, 11, None)


def test_rows_of_a_ledger_are_formatted_in_one_place() -> None:
    ledger = FixedLedger()
    for record in RECORDS:
        ledger.add(record)
    columns = ledger_columns(ledger.rows)
    assert columns["evidence"] == ["1", "5", "inf", "1e+03"]
    assert columns["since step"] == ["-", "7", "-", "2"]
    assert columns["errors"] == ["-", "-", "2 died, 1 late", "-"]
    assert not {"quarantined", "made faulty"} & set(columns), "nothing to show"
    table = ledger_table(ledger)
    shared = [name for name in columns if name not in ("errors", "late", "recently", "longest streak")]
    assert [str(column.header).replace("\n", " ") for column in table.columns] == [*shared, "notes"]
    assert list(table.columns[0].cells) == ["3", "1", "2", "0"], "suspects first, then by evidence"
    assert "| 3 | suspect | failing | 2 | 1e+03 |" in ledger_markdown(ledger)
