"""Records -> figures and tables. Never trains."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from rich import box
from rich.table import Table
from rich.text import Text

from zeno.matrix import Entry, Grid
from zeno.records import Record, Summary, summarize

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
    def percent(share: float | None) -> str:
        return "-" if share is None else f"{share:.1%}"

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
