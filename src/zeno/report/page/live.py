"""The page of runs that go on: served on loopback only, and told of the steps as they come.

`/` is the page with what is there now, `/since?run=NAME&generation=G&step=N` what came since. A run that was
resumed has fewer steps than before: its generation is one higher then, and the page takes it from its first step again.
"""

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from zeno.records.folder import RECORDS_FILE, Record, being_written
from zeno.records.ledger import Ledger
from zeno.report.page.folders import Seen, damaged, fits, num_workers, planned, runs_so_far, settings_of
from zeno.report.page.html import about, page, policy
from zeno.report.page.pack import Json, bin_of, figures, pack

LOOPBACK = "127.0.0.1"
OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")
MARK = 256  # bytes before where reading stopped, by which a file that was replaced is told


class Tail:
    """The records of a run folder that grows; only whole lines are read."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.generation = -1
        self.is_over = False
        self._anew(0)

    def _anew(self, file: int) -> None:
        settings, notes = settings_of(self.folder)
        self.generation += 1
        self.run = Seen(self.name, settings, [], num_workers(settings, []), planned(settings), notes)
        self.ledger = Ledger(self.run.workers)
        self.bin = bin_of(self.run.planned or 0, self.run.workers)
        self._file, self._offset, self._mark, self._damaged = file, 0, b"", False

    def read(self) -> None:
        """Takes in what was written since the last time."""
        try:
            with (self.folder / RECORDS_FILE).open("rb") as stream:
                file = os.fstat(stream.fileno()).st_ino
                stream.seek(max(0, self._offset - MARK))
                if file != self._file or stream.read(min(MARK, self._offset)) != self._mark:
                    if self._file:
                        self._anew(file)
                    self._file = file
                    stream.seek(0)
                new = stream.read()
        except FileNotFoundError:
            return
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._mark = (self._mark + whole)[-MARK:]
        self._take(whole.split(b"\n")[:-1])

    def _take(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            if self._damaged:
                return
            try:
                record = Record.from_json(line.decode())
                self._damaged = record.step != len(self.run.records) or not self._fits(record)
            except (ValueError, TypeError, AttributeError):
                self._damaged = True
            if self._damaged:
                self.run.notes.append(damaged(len(self.run.records)))
            else:
                self.run.records.append(record)
                self.ledger.add(record)

    def _fits(self, record: Record) -> bool:
        if not self.run.workers:  # no run.toml says how many: the first record does
            self.run.workers = num_workers({}, [record])
            self.ledger = Ledger(self.run.workers)
        return fits(record, self.run.workers)

    def since(self, step: int, generation: int) -> Json:
        """What the page takes in: the steps from a bin's first on, and the figures of the whole run."""
        start = step // self.bin * self.bin if generation == self.generation and 0 <= step <= self.num_steps else 0
        return {
            **about(self.run),
            **pack(self.run.records, self.run.workers, self.bin, start),
            **figures(self.run.records, self.ledger),
            "generation": self.generation,
        }

    @property
    def num_steps(self) -> int:
        return len(self.run.records)

    @property
    def is_done(self) -> bool:
        """It made all the steps that it was to make."""
        return self.run.planned is not None and self.num_steps >= self.run.planned


class Live:
    """What there is of the runs under some folders, right now."""

    def __init__(self, folders: Sequence[Path], is_over: Callable[[Path], bool], every: float) -> None:
        self._folders = folders
        self._every = every  # seconds, after which a page asks again
        self._is_over = is_over
        self._tails: dict[Path, Tail] = {}
        self._lock = threading.Lock()

    def _read(self) -> dict[str, Tail]:
        for name, folder in runs_so_far(self._folders).items():
            if folder not in self._tails:
                used = {tail.name for tail in self._tails.values()}
                self._tails[folder] = Tail(folder, str(folder) if name in used else name)
        for tail in self._tails.values():
            is_over = not tail.folder.exists() or self._is_over(tail.folder)  # first: what it wrote until then is read
            tail.read()
            tail.is_over = is_over or tail.is_done
        return {tail.name: tail for tail in self._tails.values()}

    def page(self) -> str:
        with self._lock:
            tails = self._read().values()
            return page([{**tail.since(0, tail.generation), "over": tail.is_over} for tail in tails], self._every)

    def since(self, name: str | None, generation: int, step: int) -> Json:
        """What is new of one run, and how far all of them are."""
        with self._lock:
            tails = self._read()
            return {
                "run": tails[name].since(step, generation) if name in tails else None,
                "runs": [
                    {"name": tail.name, "generation": tail.generation, "steps": tail.num_steps, "over": tail.is_over}
                    for tail in tails.values()
                ],
            }

    def all_over(self) -> bool:
        with self._lock:
            tails = self._read().values()
            of_several = [folder for folder in self._folders if folder.is_dir() and folder.resolve() not in self._tails]
            more_to_come = not all(map(self._is_over, of_several))
            return bool(tails) and all(tail.is_over for tail in tails) and not more_to_come


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    live: Live


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "zeno"
    sys_version = ""
    timeout = 10  # seconds that a connection may say nothing

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if not self._is_own_host():  # else a site whose name is made to point here could read the run
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", "This page is served to localhost only.")
        elif url.path == "/":
            self._answer(HTTPStatus.OK, "text/html", self.server.live.page())
        elif url.path == "/since":
            self._since(parse_qs(url.query))
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "There is / and /since.")

    def _since(self, query: dict[str, list[str]]) -> None:
        try:
            step, generation = (int(query.get(name, ["0"])[0]) for name in ("step", "generation"))
        except ValueError:
            self._answer(HTTPStatus.BAD_REQUEST, "text/plain", "step and generation are whole numbers.")
            return
        found = self.server.live.since(query.get("run", [None])[0], generation, step)
        self._answer(HTTPStatus.OK, "application/json", json.dumps(found, allow_nan=False, separators=(",", ":")))

    def _refuse(self) -> None:
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", "GET is all there is.")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse  # noqa: N815

    def _is_own_host(self) -> bool:
        return (
            re.sub(r":\d+$", "", self.headers.get("Host", "")) in OWN_NAMES
        )  # whatever the port: it may be forwarded by ssh

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Content-Security-Policy": policy(live=True) + "; frame-ancestors 'none'",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            **({"Allow": "GET"} if status == HTTPStatus.METHOD_NOT_ALLOWED else {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing: the terminal belongs to the run."""


def _server(port: int) -> _Server:
    try:
        return _Server((LOOPBACK, port), _Handler)
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"The live view needs a free port. Found {port}: {error}. Name another one, or 0 for any."
        ) from None


def has_stopped(folder: Path) -> bool:
    return not being_written(folder)


def all_over(folders: Sequence[Path]) -> bool:
    """Whether nothing goes on in these folders, though they have runs."""
    return Live(folders, has_stopped, every=1.0).all_over()


@contextmanager
def opened(
    folders: Sequence[Path], port: int = 0, is_over: Callable[[Path], bool] = has_stopped, every: float = 1.0
) -> Iterator[tuple[str, Live]]:
    """Serves the page in the background; gives its address."""
    with _server(port) as server:
        server.live = Live(folders, is_over, every)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{server.server_address[1]}/", server.live
        finally:
            server.shutdown()
            thread.join()


def serve(
    folders: Sequence[Path],
    port: int = 0,
    is_over: Callable[[Path], bool] = has_stopped,
    linger: float = 3.0,
    say: Callable[[str], None] = print,
) -> bool:
    """Serves the page until all runs have been over for `linger` seconds, so that open pages get their last steps.

    A run is over when it made its steps, or `is_over` says so of its folder; a comparison, if so of its own.
    Folders may hold no run yet. Returns False where Ctrl-C ended it.
    """
    with opened(folders, port, is_over) as (address, live):
        say(address)
        over_since: float | None = None
        try:
            while over_since is None or time.monotonic() < over_since + linger:
                time.sleep(0.2)
                over_since = (over_since or time.monotonic()) if live.all_over() else None
        except KeyboardInterrupt:
            return False
    return True
