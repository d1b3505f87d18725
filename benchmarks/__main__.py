"""`python -m benchmarks rules --json runs/bench.json`: measures, and prints the figures as tables."""

import sys
from pathlib import Path

import typer
from rich.console import Console

from benchmarks import show
from zeno.cli.console import PlainCommand

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=PlainCommand)
def measure(
    what: str = typer.Argument("rules", help=f"{', '.join(show.PARTS)}, or all."),
    size: list[int] = typer.Option([1_310_922, 10_000_000], help="Parameters (d) for rules; repeat for more."),
    threads: int = typer.Option(2, help="Torch threads."),
    json_file: Path | None = typer.Option(None, "--json", help="JSON file to write the figures to."),
) -> None:
    """Measure the rules next to those of other packages, the parts of a step, and a Ray cluster, in one run.

    Packages that are not installed are left out, with a note: pip install 'zeno-sgd[bench,ray]' installs them.
    """
    try:
        show.run(what, size, threads, json_file, Console())
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    app()
