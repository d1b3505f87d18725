"""Runs a command of the user when a worker becomes suspect."""

import os
import subprocess
import sys
from pathlib import Path

from zeno.records.row import Row

PATIENCE = 10.0  # seconds that commands may take after the end of training


class OnSuspect:
    """Starts a shell command for each new suspect, and does not wait for it while training.

    The command receives, in its environment, ZENO_WORKER, ZENO_MACHINE, ZENO_REASON, ZENO_STEP and
    ZENO_RUN.
    """

    def __init__(self, command: str, folder: Path) -> None:
        self._command = command
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def __call__(self, row: Row) -> None:
        about = {"WORKER": row.name, "MACHINE": row.machine, "REASON": row.reason, "STEP": row.since}
        found = {**about, "RUN": self._folder}
        environment = {**os.environ, **{f"ZENO_{name}": str(value) for name, value in found.items()}}
        self._running.append(subprocess.Popen(self._command, shell=True, env=environment))

    def finish(self) -> None:
        """Waits for the commands; prints a note for each that failed or still runs."""
        for process in self._running:
            try:
                if code := process.wait(PATIENCE):
                    print(f"note: the command of --on-suspect ended with exit code {code}", file=sys.stderr)
            except subprocess.TimeoutExpired:
                print("note: the command of --on-suspect is still running", file=sys.stderr)
        self._running = []
