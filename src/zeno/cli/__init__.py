"""The command line, one module for each group of commands. Importing the package imports none of them."""

import sys
from typing import NoReturn


def main() -> None:
    """Runs the command line. Ctrl-C ends it with one line and exit code 130, also while modules are imported."""
    try:
        from zeno.cli.app import main as run

        run()
    except KeyboardInterrupt:
        interrupted()


def interrupted() -> NoReturn:
    """Ends the process after Ctrl-C."""
    print("interrupted", file=sys.stderr)
    sys.exit(130)
