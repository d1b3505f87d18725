"""Writes the results of a reproduction: figures, tables and one summary page. Never trains."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from rich import box
from rich.table import Table

from zeno.report.figures import Repeats, draw_panels
from zeno.report.tables import markdown_row, text_of
from zeno.rules import Mean
from zeno.studies.compare import WITHOUT_FAULTS
from zeno.studies.reproduction.claims import FIRST, Finding, Paper, judge
from zeno.studies.reproduction.evidence import CHANCE, Evidence, accuracy_of, loss_of
from zeno.studies.reproduction.figures import BASELINES, OURS, Figure, Panel
from zeno.studies.reproduction.scales import SCALES, Scale
from zeno.studies.sweep import Outcome, key

SUMMARY_FILE = "summary.md"
RESULTS_FILE = "results.json"
FLAGS = ("model", "epochs", "seed", "precision", "repeats")  # of `zeno reproduce`, which change a scale


def write(
    scale: Scale, curves: Mapping[str, Outcome], folder: Path, paper: Paper = FIRST
) -> tuple[list[Finding], dict[str, Any]]:
    """Writes a PNG for each figure that has curves, the summary page, and its contents as JSON; returns the latter."""
    evidence = Evidence(paper.figures(scale), curves)
    found = judge(scale, evidence, paper.claims)
    for figure in evidence.figures:
        if _begun(figure, evidence):
            panels = {p.title: {name: _repeats(name, p, evidence) for name in p.curves} for p in figure.panels}
            title = f"{figure.title} ({scale.task}, {scale.model}; grey line: the loss of guessing)"
            draw_panels(panels, CHANCE, title, folder / f"{figure.name}.png", figure.by_seconds)
    (folder / SUMMARY_FILE).write_text(summary(scale, evidence, found, paper), encoding="utf-8")
    results = as_json(scale, evidence, found)
    (folder / RESULTS_FILE).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return found, results


def _begun(figure: Figure, evidence: Evidence) -> bool:
    """Whether there is more than the mean without faults, which most figures share."""
    return bool(evidence.finished(run for run in figure.runs if run.faulty or run.rule != Mean()))


def _repeats(name: str, panel: Panel, evidence: Evidence) -> Repeats:
    done, planned = evidence.finished(panel.curves[name]), len(panel.curves[name])
    label = name if len(done) == planned else f"{name} ({len(done)} of {planned})"
    elapsed = [one.elapsed for one in done if one.elapsed is not None]
    return Repeats(label, [one.accuracy for one in done], [one.train_loss for one in done], elapsed)


def summary(scale: Scale, evidence: Evidence, found: Sequence[Finding], paper: Paper = FIRST) -> str:
    """The summary page in Markdown: the claims, then every figure with its numbers."""
    runs = {key(run): run for figure in evidence.figures for run in figure.runs}
    done = evidence.finished(runs.values())
    hours = sum(one.seconds or 0 for one in done) / 3600
    words = {"fails": "**fails**"}
    claims = [[one.claim.says, words.get(one.word, one.word), by_text(one), one.seen] for one in found]
    blocks = [
        f"# {paper.title}, scale {scale.name}",
        f"{paper.about(scale)} {len(done)} of {len(runs)} runs are finished. Their steps took {hours:.1f} hours in "
        f"total. Accuracy is on at most {scale.eval_samples:,} test samples, the loss on as many training samples.",
        f"    {command(scale, paper)}",
        *(_at_a_glance(evidence) if paper is FIRST else ()),
        "## Claims",
        count(scale, found),
        _table("| claim of the paper | found | by | seen here |", "|---|---|---:|---|", claims),
    ]
    for figure in evidence.figures:
        blocks += [f"## {figure.title}", figure.shows]
        if _begun(figure, evidence):
            blocks += [f"![{figure.title}]({figure.name}.png)", *(_panel_table(one, evidence) for one in figure.panels)]
        else:
            blocks.append("Not run.")
    return "\n\n".join(blocks) + "\n"


def _at_a_glance(evidence: Evidence) -> list[str]:
    return [
        "## At a glance",
        "Final accuracy: the mean over the last fifth of the epochs, and over the repeats. "
        f"*{OURS}* needs no number of faulty workers and no rho; it uses 64 samples of the server per step.",
        _glance(evidence),
    ]


def count(scale: Scale, found: Sequence[Finding]) -> str:
    """How many claims hold; at a scale that checks none, that it runs."""
    counts = Counter(finding.word for finding in found)
    if not scale.checks_claims:
        done = f"{counts['it runs']} of {len(found)} claims have the curves that their checks need"
        return f"It runs: {done}. The scale {scale.name} is a test of the code on {scale.task}, and checks no claim."
    return (
        f"{counts['holds']} hold, {counts['fails']} fail, {counts['not run']} were not run. *by*: the distance to the "
        "threshold of the check, in points of accuracy unless it says loss; ±: standard error over the repeats."
    )


def command(scale: Scale, paper: Paper = FIRST) -> str:
    """The command that produces these results."""
    usual = vars(SCALES.get(scale.name, scale))
    changed = {name: value for name, value in vars(scale).items() if value != usual[name]}
    if "repeats_of_hard" in changed:
        changed["repeats"] = scale.repeats
    flags = {name: changed[name] for name in FLAGS if name in changed}
    start = " ".join(filter(None, ["zeno reproduce", paper.name, "--scale"]))
    return " ".join([start, scale.name, *(f"--{name} {value}" for name, value in flags.items())])


def _glance(evidence: Evidence) -> str:
    """A line for each panel with the paper's rules: the best possible, the best baseline, Zeno, and ours."""
    rows = []
    for figure, panel in ((f, p) for f in evidence.figures for p in f.panels if "zeno" in p.curves):
        ends = evidence.ends(panel)
        baselines = {name: value for name in BASELINES if (value := ends[name]) is not None}
        best = max(baselines, key=lambda name: baselines[name], default=None)
        shown = "-" if best is None else f"{text_of(ends[best], '.1%')} ({best})"
        reached = text_of(ends.get(WITHOUT_FAULTS, ends["mean"]), ".1%")
        rows.append(
            [f"{figure.title}, {panel.title}", reached, shown, text_of(ends["zeno"], ".1%"), text_of(ends[OURS], ".1%")]
        )
    head = f"| | {WITHOUT_FAULTS} | best of {', '.join(BASELINES)} | zeno, as in the paper | {OURS} |"
    return _table(head, "|---|---:|---:|---:|---:|", rows)


def by_text(finding: Finding) -> str:
    """The margin of a verdict, with its standard error if there is one."""
    verdict = finding.verdict
    if verdict is None:
        return "-"
    if verdict.unit == "loss":
        return "not finite" if not math.isfinite(verdict.by) else f"{verdict.by:+.3g} of loss"
    error = "" if verdict.error is None else f" ± {100 * verdict.error:.1f}"
    return f"{100 * verdict.by:+.1f}{error}"


def _panel_table(panel: Panel, evidence: Evidence) -> str:
    finished = {name: evidence.finished(runs) for name, runs in panel.curves.items()}
    rows = [[name, *_numbers(done), f"{len(done)} of {len(panel.curves[name])}"] for name, done in finished.items()]
    head = f"| {panel.title} | accuracy, end | best | loss, end | faulty of kept | repeats |"
    return _table(head, "|---|---:|---:|---:|---:|---:|", rows)


def _numbers(repeats: Sequence[Outcome]) -> list[str]:
    if not repeats:
        return ["-"] * 4
    loss = mean(map(loss_of, repeats))
    best = mean(max(accuracy or 0.0 for accuracy in one.accuracy) for one in repeats)
    kept = [one.faulty_among_kept for one in repeats if one.faulty_among_kept is not None]
    shown = f"{loss:.2f}" if loss < 100 else f"{loss:.1e}" if math.isfinite(loss) else "not finite"
    return [
        text_of(mean(map(accuracy_of, repeats)), ".1%"),
        text_of(best, ".1%"),
        shown,
        f"{mean(kept):.0%}" if kept else "-",
    ]


def _table(head: str, alignment: str, rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join([head, alignment, *map(markdown_row, rows)])


def claims_table(found: Sequence[Finding]) -> Table:
    """The claims for a terminal."""
    table = Table("claim", "found", "by", "seen here", box=box.SIMPLE_HEAD, pad_edge=False)
    for finding in found:
        table.add_row(finding.claim.name, finding.word, by_text(finding), finding.seen)
    return table


def as_json(scale: Scale, evidence: Evidence, found: Sequence[Finding]) -> dict[str, Any]:
    """The contents of the summary page, for scripts."""

    def one(finding: Finding) -> dict[str, Any]:
        verdict = finding.verdict
        return {
            "claim": finding.claim.name,
            "says": finding.claim.says,
            "found": finding.word,
            "by": verdict.by if verdict and math.isfinite(verdict.by) else None,
            "unit": verdict.unit if verdict else None,
            "error": verdict.error if verdict else None,
            "seen": finding.seen,
        }

    return {
        "scale": {name: value for name, value in vars(scale).items() if name != "data"},
        "claims": [one(finding) for finding in found],
        "figures": {f.name: {panel.name: evidence.ends(panel) for panel in f.panels} for f in evidence.figures},
    }
