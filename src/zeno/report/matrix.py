"""Matrices of accuracies, rules by faults: as Markdown, for the terminal, as heat maps."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table
from rich.text import Text

from zeno.report.figures import new_figure
from zeno.report.tables import markdown_row

MARKS = "*: the loss was not finite at the end. !: some seeds failed. -: no result yet."


@dataclass(frozen=True)
class Entry:
    """A rule against a fault, averaged over the seeds; None where there is no result."""

    rule: str
    told: str  # the rule with its parameters
    fault: str | None  # None: all faults
    faulty: int
    n: int  # seeds trained to the end, over which the means are taken
    accuracy: float | None
    lowest_accuracy: float | None
    train_loss: float | None  # None also if it was not finite for one of the seeds
    diverged: int  # seeds whose loss was not finite
    faulty_kept: float | None
    skipped: float | None  # steps
    seconds: float | None
    errors: tuple[str, ...]  # of seeds that failed

    def __str__(self) -> str:
        """The accuracy in percent, with marks."""
        if self.accuracy is None:
            return "failed" if self.errors else "diverged" if self.diverged else "-"
        return f"{100 * self.accuracy:.1f}{'*' if self.diverged else ''}{'!' if self.errors else ''}"


@dataclass(frozen=True)
class Grid:
    """All entries for one number of faulty workers."""

    title: str
    faulty: int
    faults: tuple[str, ...]  # the columns
    rows: tuple[tuple[Entry, ...], ...]  # one entry per fault; the first rows are controls, for all faults

    @property
    def num_controls(self) -> int:
        return sum(row[0].fault is None for row in self.rows)

    @property
    def columns(self) -> list[str]:
        return [*self.faults, "worst"]

    @property
    def values(self) -> NDArray[np.float64]:
        """[rows, columns] accuracies in percent; NaN where there is none. The worst is known once all others are."""
        accuracies = np.array([[entry.accuracy for entry in row] for row in self.rows], dtype=float)  # NaN for None
        return 100 * np.hstack([accuracies, accuracies.min(axis=1, keepdims=True)])

    @property
    def cells(self) -> list[list[tuple[str, bool]]]:
        """[rows][columns] the text, and whether it is the best rule of its column; controls do not compete."""
        values = self.values
        worst = ["-" if np.isnan(value) else f"{value:.1f}" for value in values[:, -1]]
        shown = np.array([[float(f"{value:.1f}") for value in row] for row in values])
        best = shown == np.fmax.reduce(shown[self.num_controls :], initial=0.0)
        best[: self.num_controls] = False
        return [
            list(zip([*map(str, entries), last], is_best, strict=True))
            for entries, last, is_best in zip(self.rows, worst, best.tolist(), strict=True)
        ]


def matrix_markdown(grids: Sequence[Grid]) -> str:
    """One table per number of faulty workers: rules down, faults across."""
    lines = [
        "# Accuracy of every rule under every fault",
        "",
        "Test accuracy in percent, the mean over the seeds. **Best rule** of each",
        f"fault; *worst*: the lowest over the faults. {_escaped(MARKS)}",
    ]
    for grid in grids:
        lines += ["", f"## {grid.title}", ""]
        lines += [markdown_row(["rule", *grid.columns]), "|---|" + "---:|" * len(grid.columns)]
        for row, cells in zip(grid.rows, grid.cells, strict=True):
            shown = [f"**{_escaped(text)}**" if best else _escaped(text) for text, best in cells]
            lines.append(markdown_row([row[0].told, *shown]))
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("*", "\\*")


def matrix_tables(grid: Grid, width: int) -> list[Table]:
    """The grid for a terminal: faults down, rules across, in as many tables as the width requires."""
    cells = grid.cells
    heads = [re.sub(r"([_+(,]|(?<!,) ) *", r"\1\n", row[0].rule) for row in grid.rows]  # long names in short lines
    groups: list[list[int]] = []  # the rules of each table
    used = width
    for j, head in enumerate(heads):
        needed = 1 + max(len(text) for text in [*head.split("\n"), *(text for text, _ in cells[j])])
        if used + needed > width:
            groups.append([])
            used = max(map(len, grid.columns))
        groups[-1].append(j)
        used += needed
    tables = []
    for group in groups:
        table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
        table.add_column("fault", no_wrap=True)
        for j in group:
            table.add_column(Text(heads[j]), justify="right", no_wrap=True, vertical="bottom")
        for i, name in enumerate(grid.columns):
            shown = [Text(text, style="bold" if best else "") for text, best in (cells[j][i] for j in group)]
            table.add_row(Text(name), *shown, end_section=i == len(grid.faults) - 1)
        tables.append(table)
    return tables


def heat_map(grid: Grid, path: Path) -> None:
    """Rules down, faults across, accuracy as colour and number, as a PNG file."""
    from matplotlib import colormaps

    names = [row[0].told for row in grid.rows]
    values = grid.values
    colours = colormaps["viridis"].with_extremes(bad="0.85")
    figure = new_figure(4 + 0.62 * len(grid.columns), 1.9 + 0.36 * len(names))
    axes = figure.subplots()
    image = axes.imshow(values, cmap=colours, vmin=0, vmax=100, aspect="auto")
    for i, row in enumerate(grid.cells):
        for j, (text, best) in enumerate(row):
            red, green, blue, _ = colours(values[i, j] / 100)
            light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
            shown = axes.text(j, i, text, ha="center", va="center", fontsize=8)
            shown.set(color="black" if light else "white", weight="bold" if best else "normal")
    axes.set_xticks(range(len(grid.columns)), grid.columns, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names)
    axes.axhline(grid.num_controls - 0.5, color="white", linewidth=3)  # separates the controls,
    axes.axvline(len(grid.faults) - 0.5, color="white", linewidth=3)  # and the worst of each row
    axes.set_xlabel(MARKS, fontsize=7)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, label="test accuracy in %", shrink=0.9)
    figure.suptitle(grid.title)
    figure.savefig(path, dpi=120)
