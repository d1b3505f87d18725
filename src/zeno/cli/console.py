"""Where the command line prints: results to stdout, progress and notes to stderr."""

import inspect
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
        declared = inspect.signature(self.callback).parameters if self.callback else {}
        for param in self.params:
            said = getattr(param, "help", None)
            if said is None and param.name in declared:  # typer before 0.21 loses that of arguments with click 8.5
                said = getattr(declared[param.name].default, "help", None)
            if said:
                vars(param)["help"] = escape(said)


class NoteHandler(logging.Handler):
    """Prints the library's log messages above the progress bars."""

    def emit(self, record: logging.LogRecord) -> None:
        err.print(f"note: {record.getMessage()}", soft_wrap=True)
