"""The command line, one module for each group of commands. Importing the package imports none of them."""

import os
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

MESSAGE = "interrupted"
CODE = 130


def main() -> None:
    """Runs the command line. Ctrl-C ends it with one line and exit code 130, also while modules are imported."""
    before = signal.getsignal(signal.SIGINT)
    is_default = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if is_default:
        signal.signal(signal.SIGINT, _on_interrupt)
    try:
        from zeno.cli.app import main as run

        run()
    except KeyboardInterrupt:
        interrupted()
    finally:
        if is_default:
            signal.signal(signal.SIGINT, before)


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    """Raises, or ends the process at once during an import: torch and numpy would go on, or fail in other ways."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, f"{MESSAGE}\n".encode())
            os._exit(CODE)
        frame = frame.f_back
    raise KeyboardInterrupt


def interrupted() -> NoReturn:
    """Ends the process after Ctrl-C."""
    print(MESSAGE, file=sys.stderr)
    sys.exit(CODE)
