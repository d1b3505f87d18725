"""The page of runs that go on: served on loopback only, with new steps as they are written.

`/` is the page as of now, `/since?run=NAME&generation=G&step=N` returns what is new. A run that was resumed may have
fewer steps than before: its generation is then one higher, and the page reloads it from its first step.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.parse import SplitResult, parse_qs

from zeno.records.files import open_file
from zeno.records.folder import RECORDS_FILE, being_written
from zeno.report.loopback import LOOPBACK, Answer, LoopbackServer
from zeno.report.page.html import page, policy
from zeno.report.page.pack import Json, bin_of, packed_run
from zeno.report.run_view import open_run, runs_so_far

MARK = 256  # bytes before the end of the last read; if they change, the file was replaced


class Tail:
    """The records of a run folder that grows; only complete lines are read."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.generation = -1
        self.is_over = False
        self._inode = 0  # of the file that was read; 0: none yet
        self._restart()

    def _restart(self) -> None:
        self.generation += 1
        self.run = open_run(self.folder, self.name)
        self.bin_size = bin_of(self.run.planned or 0, self.run.workers)
        self._offset, self._mark = 0, b""

    def read(self) -> None:
        """Reads the lines written since the last call."""
        try:
            with open_file(self.folder / RECORDS_FILE) as stream:
                inode = os.fstat(stream.fileno()).st_ino
                stream.seek(max(0, self._offset - MARK))
                is_same = inode == self._inode and stream.read(min(MARK, self._offset)) == self._mark
                if self._inode and not is_same:
                    self._restart()
                self._inode = inode
                stream.seek(self._offset)
                new = stream.read()
        except (FileNotFoundError, ValueError):  # it does not exist yet, or no longer, or is not a file
            return
        complete = new[: new.rfind(b"\n") + 1]
        self._offset += len(complete)
        self._mark = (self._mark + complete)[-MARK:]
        workers = self.run.workers
        self.run.extend(complete.split(b"\n")[:-1])
        if 0 < workers < self.run.workers:  # the columns of the page have become longer
            self.generation += 1

    def since(self, step: int, generation: int) -> Json:
        """The run with its steps from the bin of `step` on; with all steps if the page knows another generation.

        The step before is there too: something may have been measured after it since.
        """
        is_known = generation == self.generation and 0 <= step <= len(self.run.records)
        start = max(0, step - 1) // self.bin_size * self.bin_size if is_known else 0
        return {**packed_run(self.run, self.bin_size, start), "generation": self.generation}

    def progress(self) -> Json:
        return {
            "name": self.name,
            "generation": self.generation,
            "steps": len(self.run.records),
            "num_lines": self.run.num_lines,
            "over": self.is_over,
        }


class Live:
    """The current state of the runs in some folders; pages ask for it `every` so many seconds."""

    def __init__(self, folders: Sequence[Path], every: float = 1.0) -> None:
        self._folders = folders
        self._every = every
        self._tails: dict[Path, Tail] = {}
        self._lock = threading.Lock()

    def _read(self) -> dict[str, Tail]:
        for name, folder in runs_so_far(self._folders).items():
            if folder not in self._tails:
                used = {tail.name for tail in self._tails.values()}
                self._tails[folder] = Tail(folder, str(folder) if name in used else name)
        for tail in self._tails.values():
            # Asked before reading, so that the last steps of a run that has just ended are read.
            is_over = not tail.folder.exists() or not being_written(tail.folder)
            tail.read()
            planned = tail.run.planned
            tail.is_over = is_over or (planned is not None and len(tail.run.records) >= planned)
        return {tail.name: tail for tail in self._tails.values()}

    def page(self) -> str:
        with self._lock:
            tails = self._read().values()
            return page([{**tail.since(0, tail.generation), "over": tail.is_over} for tail in tails], self._every)

    def since(self, name: str | None, generation: int, step: int) -> Json:
        """What is new in one run, and how far all of them are."""
        with self._lock:
            tails = self._read()
            return {
                "run": tails[name].since(step, generation) if name in tails else None,
                "runs": [tail.progress() for tail in tails.values()],
            }

    def all_over(self) -> bool:
        with self._lock:
            tails = self._read().values()
            of_several = [folder for folder in self._folders if folder.is_dir() and folder.resolve() not in self._tails]
            return bool(tails) and all(tail.is_over for tail in tails) and not any(map(being_written, of_several))

    def answer(self, url: SplitResult) -> Answer:
        """The page, or what is new in one run."""
        if url.path == "/":
            return Answer(HTTPStatus.OK, self.page(), "text/html; charset=utf-8")
        if url.path != "/since":
            return Answer(HTTPStatus.NOT_FOUND, "Only / and /since exist.")
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        try:
            step, generation = int(query.get("step", 0)), int(query.get("generation", 0))
        except ValueError:
            return Answer(HTTPStatus.BAD_REQUEST, "step and generation must be integers.")
        found = json.dumps(self.since(query.get("run"), generation, step), allow_nan=False, separators=(",", ":"))
        return Answer(HTTPStatus.OK, found, "application/json; charset=utf-8")


def all_over(folders: Sequence[Path]) -> bool:
    """Whether the folders hold runs, none of which is still going on."""
    return Live(folders).all_over()


@contextmanager
def opened(folders: Sequence[Path], port: int = 0, every: float = 1.0) -> Iterator[tuple[str, Live]]:
    """Serves the page in the background; yields its address."""
    live = Live(folders, every)
    security = policy(live=True) + "; frame-ancestors 'none'"
    with closing(LoopbackServer("The live view", port, live.answer, Content_Security_Policy=security)) as server:
        yield f"http://{LOOPBACK}:{server.server_port}/", live


def serve(folders: Sequence[Path], port: int = 0, linger: float = 3.0, say: Callable[[str], None] = print) -> bool:
    """Serves the page until all runs have been over for `linger` seconds, so that open pages get the last steps.

    A run is over when it has made its steps, or when nothing writes to its folder; a comparison, when nothing writes to
    the folder of the comparison. Folders may hold no run yet. Returns False if Ctrl-C ended it.
    """
    with opened(folders, port) as (address, live):
        say(address)
        over_since: float | None = None
        try:
            while over_since is None or time.monotonic() < over_since + linger:
                time.sleep(0.2)
                over_since = (over_since or time.monotonic()) if live.all_over() else None
        except KeyboardInterrupt:
            return False
    return True
