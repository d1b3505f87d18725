"""The command line: `zeno COMMAND`.

Commands import torch, matplotlib and ray inside their functions, so that help, lists and errors appear at once.
"""

import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import typer

import zeno
from zeno.cli import inspection, interrupted, lists, studies, training
from zeno.cli.console import NoteHandler, PlainCommand, warnings_as_notes

UsageError: Any = typer.BadParameter.__base__  # of click, or of the copy of it that typer has

app = typer.Typer(
    help="Distributed SGD that survives any number of faulty workers, as long as one is good.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
COMMANDS = (
    *(training.train, training.compare, studies.matrix, studies.reproduce),
    *(inspection.suspects, inspection.report, inspection.watch),
    *(lists.rules, lists.faults, lists.tasks, lists.data),
)


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """The same command, which ends with a line after Ctrl-C, whatever the version of typer does."""

    @functools.wraps(command)
    def call(**given: Any) -> None:
        try:
            command(**given)
        except KeyboardInterrupt:
            interrupted()

    return call


for command in COMMANDS:
    app.command(cls=PlainCommand)(_interruptible(command))


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
        with warnings_as_notes():
            code = app(standalone_mode=False)
    except UsageError as error:
        _fail(error.format_message())
    except (ValueError, OSError) as error:
        if os.environ.get("ZENO_TRACEBACK"):
            raise
        _fail(str(error))
    sys.exit(code)


def _fail(message: str) -> NoReturn:
    if message:  # none after the help of `zeno` without arguments
        print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
