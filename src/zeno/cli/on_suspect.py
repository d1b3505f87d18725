"""Runs a command of the user when a worker becomes suspect."""

import os
import subprocess
import sys

from zeno.records.folder import read
from zeno.records.ledger import Ledger, ledger_of
from zeno.records.record import Record
from zeno.studies.sweep import Job

PATIENCE = 10.0  # seconds that commands may take after the end of training


class OnSuspect:
    """Starts a shell command for each new suspect, and does not wait for it while training.

    The command finds what it needs in its environment: ZENO_WORKER, ZENO_REASON, ZENO_STEP and ZENO_RUN.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self._ledgers: dict[str, Ledger] = {}  # by the name of the job
        self._running: list[subprocess.Popen[bytes]] = []

    def on_record(self, job: Job, record: Record) -> None:
        """Adds a step of this job."""
        if job.name not in self._ledgers:
            earlier = read(job.folder)[: record.step] if job.folder is not None and record.step else []
            self._ledgers[job.name] = ledger_of(earlier, job.run.workers, job.run.failure_rate)
        ledger = self._ledgers[job.name]
        for worker in ledger.add(record):
            found = {
                "ZENO_WORKER": worker,
                "ZENO_REASON": ledger.rows[worker].reason,
                "ZENO_STEP": record.step,
                "ZENO_RUN": job.folder or "",
            }
            environment = {**os.environ, **{name: str(value) for name, value in found.items()}}
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
