"""Tables of runs and of workers, for the terminal and as Markdown."""

import re
from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table

from zeno.records.ledger import Ledger
from zeno.records.record import summarize
from zeno.records.row import Row
from zeno.report.run_view import RunView

LARGE_LOSS = 1e6  # from here on with an exponent
OPTIONAL = ("reason", "mean cosine", "errors", "late", "not asked", "made faulty")  # shown only if they say something


def run_table(runs: Sequence[RunView]) -> Table:
    """One line per run; a caption has the server's share in the updates, if it has one."""
    summaries = [summarize(run.records) for run in runs]
    shares = [f"{run.name} {found.own:.1%}" for run, found in zip(runs, summaries, strict=True) if found.own]
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    result.add_column("rule", overflow="fold")  # the numbers keep their width
    for heading in ("test\naccuracy", "train\nloss", "faulty\nkept", "faulty\nof kept", "s/step"):
        result.add_column(heading, justify="right", no_wrap=True)
    for run, summary in zip(runs, summaries, strict=True):
        diverged = summary.evaluations and summary.train_loss is None
        result.add_row(
            run.name.replace("+", " + "),  # where a chain may fold
            text_of(summary.accuracy, ".1%"),
            "not finite" if diverged else _loss(summary.train_loss),
            text_of(summary.faulty_kept, ".1%"),
            text_of(summary.faulty_among_kept, ".1%"),
            text_of(summary.seconds_per_step, ".4f"),
        )
    if shares:
        result.caption = f"mean share of the server's own gradient: {', '.join(shares)}"
    return result


def _loss(loss: float | None) -> str:
    return text_of(loss, ".3f" if loss is None or abs(loss) < LARGE_LOSS else ".4g")


def skipped_text(run: RunView) -> str:
    """How many steps made no update, and why the last of them did not; empty if there are none."""
    reasons = [record.skipped for record in run.records if record.skipped is not None]
    if not reasons:
        return ""
    last = "".join(letter if letter.isprintable() else " " for letter in reasons[-1])
    verb = "was" if len(reasons) == 1 else "were"
    return f"{len(reasons)} of {len(run.records)} steps {verb} skipped. The last: {last}"


def ledger_table(ledger: Ledger, asynchronous: bool = False) -> Table:
    """One line per worker: the suspects first, then the others, by the evidence against them.

    Workers that were not asked at a step may have been computing in an asynchronous run: they did not arrive at it.

    It fits 80 characters: what is rarely there shares the last column, which folds, as long names do, and what matters
    least is left out.
    """
    rows = by_evidence(ledger)
    columns = ledger_columns(rows)
    del columns["longest streak"], columns["mean rank" if "mean cosine" in columns else "recently"]
    rare = {name: columns.pop(name) for name in ("errors", "late", "not asked") if name in columns}
    if rare:
        columns["notes"] = [_notes(row, "did not arrive" if asynchronous else "not asked") for row in rows]
    result = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    for heading in columns:
        left = heading in ("verdict", "reason", "notes")
        shown = heading.replace(" ", "\n")
        folds = heading in ("worker", "notes")
        result.add_column(shown, justify="left" if left else "right", no_wrap=not folds, overflow="fold")
    for row, cells in zip(rows, zip(*columns.values(), strict=True), strict=True):
        result.add_row(*cells, style="bold" if row.verdict == "suspect" else "")
    return result


def _notes(row: Row, absent: str) -> str:
    counts = [*row.errors.items(), ("came late", row.late), (absent, row.quarantined)]
    return ", ".join(f"{number} {kind}" for kind, number in counts if number) or "-"


def ledger_markdown(ledger: Ledger) -> str:
    """The workers that are or were suspect."""
    columns = ledger_columns([row for row in by_evidence(ledger) if row.verdict])
    columns["worker"] = [re.sub(r"([\\`*_\[\]<>&~])", r"\\\1", name) for name in columns["worker"]]
    if not columns["worker"]:
        return f"No worker is suspect after {ledger.steps} steps."
    table = "\n".join(map(markdown_row, [columns, ["---:"] * len(columns), *zip(*columns.values(), strict=True)]))
    return f"After {ledger.steps} steps. Evidence of {ledger.threshold:g} makes a suspect.\n\n{table}"


def by_evidence(ledger: Ledger) -> list[Row]:
    """The suspects, the workers that are suspect no longer, and the others, each by the evidence against them."""
    return sorted(ledger.rows, key=lambda row: (["suspect", "mended", ""].index(row.verdict), -row.evidence))


def ledger_columns(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Rows of a ledger as text: heading -> one cell per row."""
    columns = {
        "worker": [row.label for row in rows],
        "verdict": [row.verdict or "-" for row in rows],
        "reason": [row.reason or "-" for row in rows],
        "since step": [text_of(row.since, "d") for row in rows],
        "evidence": [_odds(row.evidence) for row in rows],
        "dropped": [text_of(row.dropped, ".0%") for row in rows],
        "recently": [text_of(row.recently, ".0%") for row in rows],
        "mean rank": [text_of(row.rank, ".1f") for row in rows],
        "mean cosine": [text_of(row.cosine, ".2f") for row in rows],
        "longest streak": [str(row.streak) for row in rows],
        "errors": [", ".join(f"{number} {kind}" for kind, number in row.errors.items()) or "-" for row in rows],
        "late": [str(row.late) for row in rows],
        "not asked": [str(row.quarantined) for row in rows],
        "made faulty": [text_of(row.faulty, ".0%") for row in rows],
    }
    return {name: texts for name, texts in columns.items() if name not in OPTIONAL or {*texts} - {"-", "0", "0%"}}


def _odds(evidence: float) -> str:
    return format(evidence, ".0e" if evidence >= 1000 else ".0f" if evidence >= 100 else ".2g")


def short_names(names: Sequence[str]) -> list[str]:
    """Names of rules without their parameters, where these do not tell two of them apart."""
    short = [re.sub(r"\([^()]*\)", "", name) for name in names]
    return [one if short.count(one) == 1 else name for one, name in zip(short, names, strict=True)]


def text_of(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
