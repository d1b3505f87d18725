"""Where the command line prints: results to stdout, progress and notes to stderr."""

import inspect
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand

PACKAGE = Path(__file__).parent.parent
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


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Prints warnings of zeno as notes; those of other code, such as a task of the user's, with their file and line."""
    show = warnings.showwarning

    def note(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if PACKAGE in Path(filename).parents:
            err.print(f"note: {message}", soft_wrap=True)
        else:
            show(message, category, filename, lineno, file, line)

    warnings.showwarning = note
    try:
        yield
    finally:
        warnings.showwarning = show
