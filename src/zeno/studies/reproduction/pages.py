"""Curves and claims -> pictures in the paper's layout, tables, one summary page. Never trains."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from matplotlib import figure as mpl
from matplotlib.ticker import MaxNLocator
from rich import box
from rich.table import Table

from zeno.report.tables import LINES, or_nan
from zeno.rules import Mean
from zeno.studies.reproduction.claims import CHANCE, Evidence, Finding, accuracy_of, judge, loss_of
from zeno.studies.reproduction.figures import BASELINES, OURS, WITHOUT_FAULTS, Figure, Panel
from zeno.studies.reproduction.figures import figures as all_figures
from zeno.studies.reproduction.reproduce import Curve, runs_of
from zeno.studies.reproduction.scales import SCALES, Scale, key

SUMMARY_FILE = "summary.md"
RESULTS_FILE = "results.json"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # told apart by the colour-blind too
LOOKS = {  # of the curves that most figures share: (colour, line)
    WITHOUT_FAULTS: ("0.25", ":"),
    "mean": (COLOURS[0], "--"),
    "median": (COLOURS[2], "-."),
    "krum": (COLOURS[4], (0, (5, 1))),
    "zeno": (COLOURS[1], "-"),
    OURS: (COLOURS[3], (0, (3, 1, 1, 1))),
}
HIGHEST_LOSS = 2 * CHANCE  # that is drawn: one curve that diverges would flatten all others


def write(scale: Scale, curves: Mapping[str, Curve], folder: Path) -> tuple[list[Finding], dict[str, Any]]:
    """The pictures of all figures that have a curve, the page, and the same as JSON; returns what is on them."""
    figures = all_figures(scale)
    evidence = Evidence(figures, curves)
    found = judge(scale, evidence)
    for figure in figures:
        if _begun(figure, curves):
            draw(scale, figure, curves, folder / f"{figure.name}.png")
    (folder / SUMMARY_FILE).write_text(summary(scale, figures, curves, evidence, found), encoding="utf-8")
    results = as_json(scale, figures, evidence, found)
    (folder / RESULTS_FILE).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return found, results


def _begun(figure: Figure, curves: Mapping[str, Curve]) -> bool:
    """Whether there is more than the mean without faults, which most figures share."""
    return any(key(run) in curves for run in figure.runs if run.faulty or run.rule != Mean())


def draw(scale: Scale, figure: Figure, curves: Mapping[str, Curve], path: Path) -> None:
    """Accuracy on the test set on the left, cross entropy on the training set on the right; a row for each panel."""
    rows = len(figure.panels)
    picture = mpl.Figure(figsize=(12.5, 0.6 + 3.4 * rows), layout="constrained")
    for axes, panel in zip(picture.subplots(rows, 2, squeeze=False), figure.panels, strict=True):
        for k, (name, runs) in enumerate(panel.curves.items()):
            repeats = [curves[key(run)] for run in runs if key(run) in curves]
            colour, line = LOOKS.get(name, (COLOURS[k % len(COLOURS)], LINES[k % len(LINES)]))
            label = name if len(repeats) == len(runs) else f"{name} ({len(repeats)} of {len(runs)})"
            _draw(axes[0], scale, [one.accuracy for one in repeats], colour, line, label)
            _draw(axes[1], scale, [one.train_loss for one in repeats], colour, line, label)
        axes[0].set(title=f"{panel.title}: top-1 accuracy on the test set", ylabel="accuracy", ylim=(0, None))
        axes[1].set(title=f"{panel.title}: cross entropy on the training set", ylabel="loss")
        axes[1].axhline(CHANCE, color="0.7", linewidth=1)
        axes[1].set_ylim(0, min(axes[1].get_ylim()[1], HIGHEST_LOSS))
        for one in axes:
            one.set_xlabel("epoch")
            one.xaxis.set_major_locator(MaxNLocator(integer=True))
            one.grid(alpha=0.3)
        if axes[0].lines:
            axes[1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    picture.suptitle(f"{figure.title} ({scale.task}, {scale.model}; grey line: the loss of guessing)", fontsize=11)
    picture.savefig(path, dpi=110)


def _draw(
    axes: Any, scale: Scale, repeats: Sequence[Sequence[float | None]], colour: Any, line: Any, label: str
) -> None:
    """The mean over the repeats as a line, from the lowest to the highest as a band."""
    if not repeats:
        return
    epochs = range(1, scale.epochs + 1)
    values = np.array([[or_nan(value) for value in one] for one in repeats])  # [repeats, epochs]
    axes.plot(epochs, values.mean(axis=0), color=colour, linestyle=line, linewidth=2, label=label)
    if len(repeats) > 1:
        low, high = np.fmin.reduce(values), np.fmax.reduce(values)  # of those that are finite
        axes.fill_between(epochs, low, high, color=colour, alpha=0.15, linewidth=0)


def summary(
    scale: Scale,
    figures: Sequence[Figure],
    curves: Mapping[str, Curve],
    evidence: Evidence,
    found: Sequence[Finding],
) -> str:
    """The one page: claims first, then every figure with its numbers."""
    runs = runs_of(figures)
    done = [curves[key(run)] for run in runs if key(run) in curves]
    hours = sum(one.seconds or 0 for one in done) / 3600
    counts = {word: sum(finding.word == word for finding in found) for word in ("holds", "fails", "not run")}
    lines = [
        f"# The paper's experiments, scale {scale.name}",
        "",
        f"{scale.task}, {scale.model}, {scale.epochs} epochs of {scale.steps_an_epoch} steps, 20 workers with batches "
        f"of 100, {scale.repeats} repeat(s), {scale.repeats_of_hard} where 12 are faulty, seeds from {scale.seed} on. "
        f"{len(done)} of {len(runs)} runs are finished. Their steps took {hours:.1f} hours, one run after the other. "
        f"Accuracy is on at most {scale.eval_samples:,} test samples, the loss on as many of the training set.",
        "",
        f"    {command(scale)}",
        "",
        "## At a glance",
        "",
        "Accuracy at the end: the mean over the last fifth of the epochs, and over the repeats. "
        f"*{OURS}* is told nothing, neither how many are faulty, nor rho, nor n_r; its first 20 steps are those of "
        "the server's own gradient.",
        "",
        *_glance(figures, evidence),
        "",
        "## Claims",
        "",
        f"{counts['holds']} hold, {counts['fails']} fail, {counts['not run']} were not run. *by*: how far it is from "
        "where the verdict would turn, in points of accuracy unless it says loss; ±: standard error over the repeats.",
        "",
        "| claim of the paper | found | by | seen here |",
        "|---|---|---:|---|",
    ]
    for finding in found:
        lines.append(_row([finding.claim.says, _word(finding), by_text(finding), _seen(finding)]))
    for figure in figures:
        lines += ["", f"## {figure.title}", "", figure.shows, ""]
        if not _begun(figure, curves):
            lines.append("Not run.")
            continue
        lines += [f"![{figure.title}]({figure.name}.png)", ""]
        for panel in figure.panels:
            lines += _panel_table(panel, curves)
    return "\n".join(lines) + "\n"


def command(scale: Scale) -> str:
    """What to type to have all of this."""
    usual = SCALES.get(scale.name, scale)
    names = ("model", "epochs", "seed", "precision")
    flags = {name: getattr(scale, name) for name in names if getattr(scale, name) != getattr(usual, name)}
    if (scale.repeats, scale.repeats_of_hard) != (usual.repeats, usual.repeats_of_hard):
        flags["repeats"] = scale.repeats
    return " ".join(["zeno reproduce --scale", scale.name, *(f"--{name} {value}" for name, value in flags.items())])


def _glance(figures: Sequence[Figure], evidence: Evidence) -> list[str]:
    """A line for each panel with the paper's curves: what there is to reach, the best baseline, Zeno, and ours."""
    lines = [
        f"| | {WITHOUT_FAULTS} | best of {', '.join(BASELINES)} | zeno, as in the paper | {OURS} |",
        "|---|---:|---:|---:|---:|",
    ]
    for figure in figures:
        for panel in figure.panels:
            if "zeno" not in panel.curves:
                continue
            ends = {name: evidence.accuracy((figure.name, panel.name), name) for name in panel.curves}
            baselines = {name: value for name in BASELINES if (value := ends[name]) is not None}
            best = max(baselines, key=lambda name: baselines[name], default=None)
            shown = [
                _percent(ends.get(WITHOUT_FAULTS, ends["mean"])),
                "-" if best is None else f"{_percent(ends[best])} ({best})",
                _percent(ends["zeno"]),
                _percent(ends[OURS]),
            ]
            lines.append(_row([f"{figure.title}, {panel.title}", *shown]))
    return lines


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _word(finding: Finding) -> str:
    return f"**{finding.word}**" if finding.word == "fails" else finding.word


def by_text(finding: Finding) -> str:
    """By how much, with its standard error where there is one."""
    verdict = finding.verdict
    if verdict is None:
        return "-"
    if verdict.unit == "loss":
        return "not finite" if not math.isfinite(verdict.by) else f"{verdict.by:+.3g} of loss"
    error = "" if verdict.error is None else f" ± {100 * verdict.error:.1f}"
    return f"{100 * verdict.by:+.1f}{error}"


def _seen(finding: Finding) -> str:
    if finding.verdict is None:
        return f"needs {finding.lacks}"
    return finding.verdict.seen + (f". Likely: {finding.why_not}" if finding.why_not else "")


def _panel_table(panel: Panel, curves: Mapping[str, Curve]) -> list[str]:
    lines = [
        "",
        f"| {panel.title} | accuracy, end | best | loss, end | faulty of kept | repeats |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, runs in panel.curves.items():
        repeats = [curves[key(run)] for run in runs if key(run) in curves]
        lines.append(_row([name, *_numbers(repeats), f"{len(repeats)} of {len(runs)}"]))
    return lines


def _numbers(repeats: Sequence[Curve]) -> list[str]:
    if not repeats:
        return ["-"] * 4
    ends, loss = mean(map(accuracy_of, repeats)), mean(map(loss_of, repeats))
    best = mean(max(accuracy or 0.0 for accuracy in one.accuracy) for one in repeats)
    kept = [one.faulty_among_kept for one in repeats if one.faulty_among_kept is not None]
    shown = f"{loss:.2f}" if loss < 100 else f"{loss:.1e}" if math.isfinite(loss) else "not finite"
    return [f"{ends:.1%}", f"{best:.1%}", shown, f"{mean(kept):.0%}" if kept else "-"]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def claims_table(found: Sequence[Finding]) -> Table:
    """The claims for a terminal."""
    table = Table("claim", "found", "by", "seen here", box=box.SIMPLE_HEAD, pad_edge=False)
    for finding in found:
        table.add_row(finding.claim.name, finding.word, by_text(finding), _seen(finding))
    return table


def as_json(scale: Scale, figures: Sequence[Figure], evidence: Evidence, found: Sequence[Finding]) -> dict[str, Any]:
    """All that the page says, for scripts."""

    def one(finding: Finding) -> dict[str, Any]:
        verdict = finding.verdict
        return {
            "claim": finding.claim.name,
            "says": finding.claim.says,
            "found": finding.word,
            "by": verdict.by if verdict and math.isfinite(verdict.by) else None,
            "unit": verdict.unit if verdict else None,
            "error": verdict.error if verdict else None,
            "seen": _seen(finding),
        }

    return {
        "scale": {name: value for name, value in asdict(scale).items() if name != "data"},
        "claims": [one(finding) for finding in found],
        "figures": {
            figure.name: {
                panel.name: {name: evidence.accuracy((figure.name, panel.name), name) for name in panel.curves}
                for panel in figure.panels
            }
            for figure in figures
        },
    }
