"""Tables at the width of a usual terminal, and figures with long names."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from support.made_runs import made, run_of
from zeno.records.ledger import ledger_of
from zeno.report import figures
from zeno.report.tables import ledger_table, run_table, short_names, skipped_text

LONG = "bucketing(size=3)+nnm(faulty=9)+centered_clipping(radius=3.0, iterations=4)"


def at_80_columns(table: Table) -> str:
    shown = io.StringIO()
    Console(file=shown, width=80, markup=False).print(table)
    return shown.getvalue()


def test_the_numbers_of_a_run_are_whole_beside_a_long_name() -> None:
    text = at_80_columns(run_table([run_of(made(), LONG), run_of(made(), "zeno")]))
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    (first,) = [line for line in text.splitlines() if line.lstrip().startswith("bucketing")]
    assert first.split()[-5:] == ["79.0%", "0.025", "0.0%", "0.0%", "0.1199"]  # accuracy, loss, faulty, seconds
    folded = "".join(line.strip() for line in text.splitlines() if "%" not in line or "bucketing" in line)
    assert "centered_clipping(radius=3.0," in folded
    assert "iterations=4)" in folded


def test_huge_losses_have_an_exponent() -> None:
    records = made(steps=10)
    records[9] = replace(records[9], train_loss=3.4028e38)
    assert " 3.403e+38 " in at_80_columns(run_table([run_of(records)]))
    records[9] = replace(records[9], train_loss=999_999.0)
    assert " 999999.000 " in at_80_columns(run_table([run_of(records)]))


def test_skipped_steps_are_counted_and_the_reason_cannot_write_to_the_terminal() -> None:
    records = made()
    assert skipped_text(run_of(records)) == "1 of 80 steps was skipped. The last: nobody answered"
    records[31] = replace(records[31], skipped="no\x1b[2J\nuse")
    assert skipped_text(run_of(records)) == "2 of 80 steps were skipped. The last: no [2J use"
    assert skipped_text(run_of(records[:30])) == ""


def test_the_ledger_is_readable_with_every_column() -> None:
    ledger = ledger_of(made(workers=12, steps=80), 12)
    text = at_80_columns(ledger_table(ledger))
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert max(map(len, text.splitlines())) <= 80
    lines = {
        line.split()[0]: line.split() for line in text.splitlines() if line.split()[:1] and line[:6].strip().isdigit()
    }
    assert sorted(map(int, lines)) == list(range(12))
    rows = {str(row.worker): row for row in ledger.rows}
    for worker, row in rows.items():
        assert f"{row.dropped:.0%}" in lines[worker]
        assert f"{row.rank:.1f}" in lines[worker]
    assert "raised" in lines["9"], "5 errors, of this kind"
    assert lines["4"][-3:] == ["1", "came", "late"]
    assert lines["1"][-3:] == ["10", "not", "asked"]


def test_workers_of_an_asynchronous_run_were_not_there_rather_than_not_asked() -> None:
    text = at_80_columns(ledger_table(ledger_of(made(workers=12, steps=80), 12), asynchronous=True))
    assert "not asked" not in text
    assert "10 did not" in text


def test_short_names_leave_out_parameters_that_are_not_needed() -> None:
    names = ["mean without faults", "krum(faulty=8)", "zeno(trim=3)", "zeno(trim=4)", LONG]
    assert short_names(names) == [
        "mean without faults",
        "krum",
        "zeno(trim=3)",
        "zeno(trim=4)",
        "bucketing+nnm+centered_clipping",
    ]


@pytest.mark.parametrize("count", [1, 20])
def test_long_names_leave_the_plots_their_size(count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made_figures: list[Any] = []
    new_figure = figures.new_figure

    def kept(*size: float) -> Any:
        made_figures.append(new_figure(*size))
        return made_figures[-1]

    monkeypatch.setattr(figures, "new_figure", kept)
    for names in (["zeno"], [f"{LONG}{k}" for k in range(count)]):
        figures.curves([run_of(made(), name) for name in names], tmp_path / "curves.png", "a title")
    plain, long = ([axes.get_window_extent() for axes in figure.axes] for figure in made_figures)
    for a, b in zip(plain, long, strict=True):
        assert b.width == pytest.approx(a.width, rel=0.05)
        assert b.height == pytest.approx(a.height, rel=0.25)
    (legend,) = made_figures[1].legends
    whole, inside = made_figures[1].bbox, legend.get_window_extent()
    assert whole.x0 <= inside.x0
    assert inside.x1 <= whole.x1
