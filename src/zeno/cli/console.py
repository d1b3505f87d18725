"""Where the command line prints: results to stdout, progress and notes to stderr."""

import logging
from typing import Any

from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand

PLAIN: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}  # text as it is: [bench] is no style
out, err = Console(**PLAIN), Console(stderr=True, **PLAIN)


class PlainCommand(TyperCommand):
    """A command whose help is shown as it is written."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.help = escape(self.help or "")
        for param in self.params:
            if said := getattr(param, "help", None):
                vars(param)["help"] = escape(said)


class NoteHandler(logging.Handler):
    """Prints the library's log messages above the progress bars."""

    def emit(self, record: logging.LogRecord) -> None:
        err.print(f"note: {record.getMessage()}", soft_wrap=True)
