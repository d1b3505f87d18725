"""Where the command line prints: results to stdout, progress and notes to stderr."""

import logging

from rich.console import Console

out, err = Console(), Console(stderr=True)


class NoteHandler(logging.Handler):
    """Prints the library's log messages above the progress bars."""

    def emit(self, record: logging.LogRecord) -> None:
        err.print(f"note: {record.getMessage()}", markup=False, highlight=False, soft_wrap=True)
