"""Figures of runs, as PNG files."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np

from zeno.report.run_view import RunView
from zeno.report.worker_map import LEGEND, WorkerMap

LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))  # so that colour is not the only difference
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # distinct for the colour-blind too
STYLES = {  # colour and line of the curves that most figures of the reproduction share
    "mean without faults": ("0.25", ":"),
    "mean": (COLOURS[0], "--"),
    "median": (COLOURS[2], "-."),
    "krum": (COLOURS[4], (0, (5, 1))),
    "zeno": (COLOURS[1], "-"),
    "zeno_auto": (COLOURS[3], (0, (3, 1, 1, 1))),
    "zenopp": (COLOURS[1], "-"),
    "zeno_auto, buffers of 5": (COLOURS[3], (0, (3, 1, 1, 1))),
    "server alone": (COLOURS[5], (0, (3, 1, 1, 1, 1, 1))),
}
NAME_WIDTH, TITLE_WIDTH = 36, 110  # characters per line
LEGEND_ROW, LINE_HEIGHT = 3, 0.2  # names per row, inches per line
MOST_LABELS = 40  # workers on the axis of a map


class Repeats(NamedTuple):
    """The repeats of one curve; None where a value is not finite."""

    label: str
    accuracy: Sequence[Sequence[float | None]]  # [repeats][evaluations]
    loss: Sequence[Sequence[float | None]]
    seconds: Sequence[Sequence[float]] = ()  # up to each evaluation


def new_figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # here, because it takes long to import

    return Figure(figsize=(width, height), layout="constrained")


def curves(runs: Sequence[RunView], path: Path, title: str = "") -> None:
    """Test accuracy and train loss over the steps."""
    names = [fill(run.name.replace("+", " + "), NAME_WIDTH) for run in runs]
    lines = math.ceil(len(names) / LEGEND_ROW) * max((name.count("\n") + 1 for name in names), default=0)
    figure = new_figure(11, 4 + LINE_HEIGHT * lines)
    accuracy, loss = figure.subplots(1, 2)
    for k, run in enumerate(runs):
        evaluated = [r for r in run.records if r.measured]
        curve = Repeats(run.name, [[r.accuracy for r in evaluated]], [[r.train_loss for r in evaluated]])
        _draw_curve((accuracy, loss), [r.step + 1 for r in evaluated], curve, f"C{k}", LINES[k % len(LINES)])
    accuracy.set(xlabel="step", ylabel="test accuracy", ylim=(0, 1))
    loss.set(xlabel="step", ylabel="train loss", yscale="log")
    for axes in (accuracy, loss):
        axes.grid(alpha=0.3)
    if runs:  # below the plots: a long name takes no width from them
        figure.legend(accuracy.lines, names, loc="outside lower center", ncols=LEGEND_ROW)
    figure.suptitle(fill(title, TITLE_WIDTH))
    figure.savefig(path, dpi=120)


def draw_panels(
    panels: Mapping[str, Mapping[str, Repeats]], chance: float, title: str, path: Path, by_seconds: bool = False
) -> None:
    """One row per panel: accuracy on the test set on the left, cross entropy on the training set on the right.

    `by_seconds` adds the accuracy over the seconds of training. `chance` is the loss of guessing, drawn as a grey line.
    Losses above twice that are cut off: one curve that diverges would flatten all others.
    """
    from matplotlib.ticker import MaxNLocator

    columns = 3 if by_seconds else 2
    figure = new_figure(6.25 * columns, 0.6 + 3.4 * len(panels))
    rows = figure.subplots(len(panels), columns, squeeze=False)
    for (accuracy, loss, *over_time), (name, curves_of_panel) in zip(rows, panels.items(), strict=True):
        for k, (curve, repeats) in enumerate(curves_of_panel.items()):
            colour, line = STYLES.get(curve, (COLOURS[k % len(COLOURS)], LINES[k % len(LINES)]))
            if repeats.accuracy:
                _draw_curve((accuracy, loss), range(1, len(repeats.accuracy[0]) + 1), repeats, colour, line)
            for axes in over_time if repeats.seconds else ():
                seconds = np.mean(repeats.seconds, axis=0)
                _draw_repeats(axes, seconds, repeats.accuracy, repeats.label, colour, line)
        accuracy.set(title=f"{name}: top-1 accuracy on the test set", ylabel="accuracy", ylim=(0, None))
        loss.set(title=f"{name}: cross entropy on the training set", ylabel="loss")
        loss.axhline(chance, color="0.7", linewidth=1)
        loss.set_ylim(0, min(loss.get_ylim()[1], 2 * chance))
        for axes in (accuracy, loss):
            axes.set_xlabel("epoch")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for axes in over_time:
            axes.set(title=f"{name}: accuracy over time", xlabel="seconds", ylabel="accuracy", ylim=(0, None))
        for axes in (accuracy, loss, *over_time):
            axes.grid(alpha=0.3)
        if accuracy.lines:
            axes.legend(
                *accuracy.get_legend_handles_labels(), fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5)
            )
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=110)


def _draw_curve(both: tuple[Any, Any], x: Sequence[int], curve: Repeats, colour: str, line: Any) -> None:
    for axes, repeats in zip(both, (curve.accuracy, curve.loss), strict=True):
        _draw_repeats(axes, x, repeats, curve.label, colour, line)


def _draw_repeats(
    axes: Any, x: Any, repeats: Sequence[Sequence[float | None]], label: str, colour: str, line: Any
) -> None:
    """The mean over the repeats as a line, from the lowest to the highest as a band."""
    values = np.array(repeats, dtype=float)  # None becomes NaN
    axes.plot(x, values.mean(axis=0), color=colour, linestyle=line, linewidth=2, label=label)
    if len(repeats) > 1:
        low, high = np.fmin.reduce(values), np.fmax.reduce(values)  # of the finite ones
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def worker_maps(runs: Sequence[RunView], path: Path, title: str = "") -> None:
    """The worker map of each run whose rule ranks candidates, or of all runs if none does."""
    begun = [run for run in runs if run.records and run.workers]
    shown = [run for run in begun if any(r.scores is not None for r in run.records)] or begun
    if not shown:
        return
    heights = [0.8 + 0.11 * min(MOST_LABELS, run.workers) for run in shown]
    figure = new_figure(11, 1.2 + sum(heights))
    all_axes = figure.subplots(len(shown), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for axes, run in zip(all_axes, shown, strict=True):
        _draw_worker_map(axes, run)
    all_axes[-1].set_xlabel("step")
    figure.suptitle(fill(title, TITLE_WIDTH))
    figure.text(0.5, -0.01, fill(LEGEND, 150), ha="center", va="top", fontsize=7, color="0.35")
    figure.savefig(path, dpi=120, bbox_inches="tight")


def shortened(name: str, most: int = NAME_WIDTH) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def _draw_worker_map(axes: Any, run: RunView) -> None:
    picture, suspects = WorkerMap(run.workers), run.ledger.suspects
    for record in run.records:
        picture.add(record)
    extent = (-0.5, len(run.records) - 0.5, run.workers + picture.has_server - 0.5, -0.5)
    axes.imshow(picture.image(), extent=extent, aspect="auto", interpolation="none")
    faulty = {row.worker for row in run.ledger.rows if row.faulty and row.faulty > 0.5}
    labelled = range(0, run.workers, 1 if run.workers <= MOST_LABELS else run.workers // 20)
    names = [shortened(name).replace("$", r"\$") for name in run.ledger.names]  # a pair of $ would be a formula
    marks = [f"{'▶ ' if i in suspects else ''}{names[i]}{' F' if i in faulty else ''}" for i in labelled]
    server = [run.workers] if picture.has_server else []
    axes.set_yticks([*labelled, *server], [*marks, *["server"] * len(server)], fontsize=6)
    for row in server:
        axes.axhline(row - 0.5, color="white", linewidth=2)
    for label, i in zip(axes.get_yticklabels(), labelled, strict=False):
        label.set(weight="bold" if i in suspects else "normal")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_ylabel("worker")
    found = f"▶: {len(suspects)} suspect" if suspects else "no worker is suspect"
    axes.set_title(f"{run.name}   ({found}{', F: made faulty' if faulty else ''})", fontsize=9, loc="left")
