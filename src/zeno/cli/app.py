"""The command line: `zeno COMMAND`.

Commands import torch, matplotlib and ray inside their functions, so that help, lists and errors appear at once.
"""

import logging
import os
import sys

import typer

import zeno
from zeno.cli import inspection, lists, studies, training
from zeno.cli.console import NoteHandler

app = typer.Typer(
    help="Distributed SGD that survives any number of faulty workers, as long as one is good.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
COMMANDS = (
    *(training.train, training.compare, studies.matrix, studies.reproduce),
    *(inspection.suspects, inspection.report, inspection.watch),
    *(lists.rules, lists.faults, lists.tasks, lists.data),
)
for command in COMMANDS:
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(zeno.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Options before the command."""


def main() -> None:
    """Runs the command line. A mistake by the user ends with one line and exit code 2."""
    logging.getLogger("zeno").addHandler(NoteHandler())
    logging.getLogger("zeno").setLevel(logging.INFO)
    try:
        app()
    except (ValueError, OSError) as error:
        if os.environ.get("ZENO_TRACEBACK"):
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
