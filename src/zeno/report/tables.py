"""Records -> figures and tables. Never trains."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from rich import box
from rich.table import Table
from rich.text import Text

from zeno.records.folder import Record, Summary, summarize
from zeno.records.ledger import Ledger, Row, ledger_of
from zeno.report.worker_map import LEGEND, Map
from zeno.studies.matrix import Entry, Grid

LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))  # not told apart by colour alone


def table(runs: Mapping[str, Sequence[Record]]) -> Table:
    """One line for each run."""
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    result.add_column("rule", no_wrap=True)
    for heading in ("test\naccuracy", "train\nloss", "faulty\nkept", "faulty\nof kept", "s a\nstep"):
        result.add_column(heading, justify="right", no_wrap=True)
    for name, records in runs.items():
        result.add_row(name, *_cells(summarize(records)))
    return result


def _cells(summary: Summary) -> list[str]:
    return [
        percent(summary.accuracy),
        "-" if not summary.evaluations else "not finite" if summary.train_loss is None else f"{summary.train_loss:.3f}",
        percent(summary.faulty_kept),
        percent(summary.faulty_among_kept),
        "-" if summary.seconds_per_step is None else f"{summary.seconds_per_step:.4f}",
    ]


def curves(runs: Mapping[str, Sequence[Record]], path: Path, title: str = "") -> None:
    """Test accuracy and train loss over the steps, as a PNG."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    accuracy, loss = figure.subplots(1, 2)
    for k, (name, records) in enumerate(runs.items()):
        seen = [r for r in records if r.evaluated]
        steps = [r.step + 1 for r in seen]
        style = {"label": name, "linestyle": LINES[k % len(LINES)], "linewidth": 2}
        accuracy.plot(steps, [or_nan(r.accuracy) for r in seen], **style)
        loss.plot(steps, [or_nan(r.train_loss) for r in seen], **style)
    accuracy.set(xlabel="step", ylabel="test accuracy", ylim=(0, 1))
    loss.set(xlabel="step", ylabel="train loss", yscale="log")
    for axes in (accuracy, loss):
        axes.grid(alpha=0.3)
    accuracy.legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def ledger_table(ledger: Ledger) -> Table:
    """One line for each worker: the suspects, then the others, those with the most evidence against them first."""
    rows = sorted(ledger.rows, key=lambda row: (row.verdict != "suspect", row.verdict != "mended", -row.evidence))
    headings = ["worker", "verdict", "since\nstep", "evidence", "dropped", "recently", "mean\nrank", "longest\nstreak"]
    more = {  # where there is something to show
        "errors": any(row.errors for row in rows),
        "late": any(row.late for row in rows),
        "quarantined": any(row.quarantined for row in rows),
        "made\nfaulty": any(row.faulty for row in rows),
    }
    result = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in [*headings, *(name for name, shown in more.items() if shown)]:
        left = heading in ("verdict", "errors")
        result.add_column(heading, justify="left" if left else "right", no_wrap=heading != "errors")
    for row in rows:
        errors = ", ".join(f"{number} {kind}" for kind, number in row.errors.items()) or "-"
        last = [errors, str(row.late), str(row.quarantined), _whole_percent(row.faulty)]
        cells = [*_ledger_cells(row), *(text for text, shown in zip(last, more.values(), strict=True) if shown)]
        result.add_row(*cells, style="bold" if row.verdict == "suspect" else "")
    return result


def _ledger_cells(row: Row) -> list[str]:
    return [
        str(row.worker),
        row.verdict or "-",
        "-" if row.since is None else str(row.since),
        f"{row.evidence:.0e}" if row.evidence >= 1000 else f"{row.evidence:.2g}",
        _whole_percent(row.dropped),
        _whole_percent(row.recently),
        "-" if row.rank is None else f"{row.rank:.1f}",
        str(row.streak),
    ]


def _whole_percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def workers(runs: Mapping[str, Sequence[Record]], path: Path, title: str = "") -> None:
    """Worker x step of each run that has several workers' candidates ranked, or of all if none has, as a PNG."""
    shown = {name: records for name, records in runs.items() if any(r.scores is not None for r in records)} or runs
    shown = {name: records for name, records in shown.items() if records}
    if not shown:
        return
    num = {name: max(len(r.kept or r.scores or ()) for r in records) or 1 for name, records in shown.items()}
    heights = [0.8 + 0.11 * min(40, num[name]) for name in shown]
    figure = Figure(figsize=(11, 1.2 + sum(heights)), layout="constrained")
    panels = figure.subplots(len(shown), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for axes, (name, records) in zip(panels, shown.items(), strict=True):
        _draw_workers(axes, name, records, num[name])
    panels[-1].set_xlabel("step")
    figure.suptitle(title)
    figure.text(0.5, -0.01, fill(LEGEND, 150), ha="center", va="top", fontsize=7, color="0.35")
    figure.savefig(path, dpi=120, bbox_inches="tight")


def _draw_workers(axes: Any, name: str, records: Sequence[Record], num: int) -> None:
    picture, ledger = Map(num), ledger_of(records, num)
    for record in records:
        picture.add(record)
    axes.imshow(
        picture.image(), extent=(-0.5, len(records) - 0.5, num - 0.5, -0.5), aspect="auto", interpolation="none"
    )
    faulty = {row.worker for row in ledger.rows if row.faulty and row.faulty > 0.5}
    marks = {i: f"{'▶ ' if i in ledger.suspects else ''}{i}{' F' if i in faulty else ''}" for i in range(num)}
    every = 1 if num <= 40 else num // 20
    axes.set_yticks([*range(0, num, every)], [marks[i] for i in range(0, num, every)], fontsize=6)
    for label, i in zip(axes.get_yticklabels(), range(0, num, every), strict=True):
        label.set(weight="bold" if i in ledger.suspects else "normal")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_ylabel("worker")
    known = ", F: made faulty" if faulty else ""
    found = f"▶: {len(ledger.suspects)} suspect{known}" if ledger.suspects else f"nobody is suspect{known}"
    axes.set_title(f"{name}   ({found})", fontsize=9, loc="left")


def or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


MARKS = "*: the loss was not finite at the end. !: some seeds failed. -: nothing there yet."


def accuracy_text(entry: Entry) -> str:
    """The accuracy in percent, with what is to be known of it."""
    if entry.accuracy is None:
        return "failed" if entry.errors else "diverged" if entry.diverged else "-"
    return f"{100 * entry.accuracy:.1f}{'*' if entry.diverged else ''}{'!' if entry.errors else ''}"


def worst(row: Sequence[Entry]) -> float | None:
    """The lowest accuracy over the faults, once all of them are there."""
    found = [entry.accuracy for entry in row if entry.accuracy is not None]
    return min(found) if len(found) == len(row) else None


def _worst_text(row: Sequence[Entry]) -> str:
    lowest = worst(row)
    return "-" if lowest is None else f"{100 * lowest:.1f}"


def _best(values: Sequence[float | None]) -> list[bool]:
    """Which of the rules, all rows but the first, are best as far as the table shows."""
    shown = [None if value is None else round(100 * value, 1) for value in values]
    top = max((value for value in shown[1:] if value is not None), default=None)
    return [False, *(value is not None and value == top for value in shown[1:])]


def _texts(grid: Grid) -> list[list[tuple[str, bool]]]:
    """What to show, and whether it is the best: for each row its entries, and the worst of them."""
    texts = [[*map(accuracy_text, row), _worst_text(row)] for row in grid.rows]
    values = [[*(entry.accuracy for entry in row), worst(row)] for row in grid.rows]
    best = [_best(column) for column in zip(*values, strict=True)]  # [columns][rows]
    return [[(text, best[j][i]) for j, text in enumerate(row)] for i, row in enumerate(texts)]


def matrix_markdown(grids: Sequence[Grid]) -> str:
    """A table for each number of faulty workers: rules down, faults across."""
    lines = [
        "# Which rule survives what",
        "",
        "Test accuracy in percent, the mean over the seeds. **Best rule** of each",
    ]
    lines += [f"fault; *worst*: the lowest over the faults. {MARKS.replace('*', chr(92) + '*')}"]
    for grid in grids:
        lines += ["", f"## {grid.title}", ""]
        lines += [_markdown_row(["rule", *grid.faults, "worst"]), "|---|" + "---:|" * (len(grid.faults) + 1)]
        for row, texts in zip(grid.rows, _texts(grid), strict=True):
            shown = [text.replace("*", "\\*") for text, _ in texts]
            bold = [f"**{text}**" if best else text for text, (_, best) in zip(shown, texts, strict=True)]
            lines.append(_markdown_row([row[0].told, *bold]))
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def matrix_tables(grid: Grid, width: int) -> list[Table]:
    """The grid for a terminal: faults down, rules across, in as many tables as the width asks for."""
    texts = _texts(grid)
    heads = [_broken(row[0].rule) for row in grid.rows]
    first = max(map(len, [*grid.faults, "worst"]))
    tables: list[Table] = []
    rest = list(range(len(heads)))
    while rest:
        used, here = first, list[int]()
        for j in rest:
            used += 1 + max(len(text) for text in [*heads[j].split("\n"), *(text for text, _ in texts[j])])
            if here and used > width:
                break
            here.append(j)
        rest = rest[len(here) :]
        table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
        table.add_column("fault", no_wrap=True)
        for j in here:
            table.add_column(Text(heads[j]), justify="right", no_wrap=True, vertical="bottom")
        for i, name in enumerate([*grid.faults, "worst"]):
            shown = [Text(texts[j][i][0], style="bold" if texts[j][i][1] else "") for j in here]
            table.add_row(Text(name), *shown, end_section=i == len(grid.faults) - 1)
        tables.append(table)
    return tables


def _broken(name: str) -> str:
    """A long name in short lines."""
    return re.sub(r"([_+(,]|(?<!,) ) *", r"\1\n", name)


def heat_map(grid: Grid, path: Path) -> None:
    """Rules down, faults across, the accuracy as colour and number, as a PNG."""
    names = [row[0].told for row in grid.rows]
    columns = [*grid.faults, "worst"]
    numbers = [[*(or_nan(entry.accuracy) for entry in row), or_nan(worst(row))] for row in grid.rows]
    values = 100 * np.array(numbers)
    colours = colormaps["viridis"].with_extremes(bad="0.85")
    figure = Figure(figsize=(4 + 0.62 * len(columns), 1.9 + 0.36 * len(names)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values, cmap=colours, vmin=0, vmax=100, aspect="auto")
    for i, row in enumerate(_texts(grid)):
        for j, (text, best) in enumerate(row):
            red, green, blue, _ = colours(values[i, j] / 100)
            light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
            shown = axes.text(j, i, text, ha="center", va="center", fontsize=8)
            shown.set(color="black" if light else "white", weight="bold" if best else "normal")
    axes.set_xticks(range(len(columns)), columns, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names)
    axes.axhline(0.5, color="white", linewidth=3)  # apart: the reference, and the worst of each row
    axes.axvline(len(columns) - 1.5, color="white", linewidth=3)
    axes.set_xlabel(MARKS, fontsize=7)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, label="test accuracy in %", shrink=0.9)
    figure.suptitle(grid.title)
    figure.savefig(path, dpi=120)
