"""Records -> figures and tables. Never trains."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich import box
from rich.table import Table

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
        accuracy.plot(steps, [_or_nan(r.accuracy) for r in seen], **style)
        loss.plot(steps, [_or_nan(r.train_loss) for r in seen], **style)
    accuracy.set(xlabel="step", ylabel="test accuracy", ylim=(0, 1))
    loss.set(xlabel="step", ylabel="train loss", yscale="log")
    for axes in (accuracy, loss):
        axes.grid(alpha=0.3)
    accuracy.legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
