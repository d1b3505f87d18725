"""HTTP on loopback, for the live view and for metrics.

Only requests to this machine by its own name are answered: a web site whose name was made to point here cannot read a
run. A request that has not arrived after some seconds is given up, also if its client sends a byte now and then.
"""

import io
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

LOOPBACK = "127.0.0.1"
OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Answer(NamedTuple):
    """What a request gets."""

    status: HTTPStatus
    text: str
    kind: str = "text/plain; charset=utf-8"


class LoopbackServer(ThreadingHTTPServer):
    """Answers GET requests in the background until it is closed; `what` needs the port, in an error."""

    def __init__(self, what: str, port: int, answer: Callable[[SplitResult], Answer], **headers: str) -> None:
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ValueError(
                f"{what} needs a free port on {LOOPBACK}. Found port {port}: {error}. Name another one, or 0 for any."
            ) from None
        self.answer = answer
        self.headers = {**HEADERS, **{name.replace("_", "-"): value for name, value in headers.items()}}
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints nothing if the other side has gone."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Arriving(io.RawIOBase):
    """What a client sends, until `seconds` from now: the timeout of a socket begins anew with every byte."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection, self._seconds = connection, seconds
        self._until = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long to arrive")
        self._connection.settimeout(left)
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(self._seconds)  # of the answer, as a whole


class _Handler(BaseHTTPRequestHandler):
    server: LoopbackServer
    server_version = "zeno"
    sys_version = ""
    timeout = 10  # seconds that a request may take to arrive, and its answer to be sent

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Arriving(self.connection, self.timeout))

    def do_GET(self) -> None:
        host = re.sub(r":\d+$", "", self.headers.get("Host", ""))  # any port: ssh may forward it
        if host not in OWN_NAMES:
            self._send(Answer(HTTPStatus.FORBIDDEN, "This page is served to localhost only."))
            return
        try:
            url = urlsplit(self.path)
        except ValueError:
            self._send(Answer(HTTPStatus.BAD_REQUEST, "The address is not valid."))
            return
        self._send(self.server.answer(url))

    def _not_allowed(self) -> None:
        self._send(Answer(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET is allowed."), Allow="GET")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _not_allowed  # noqa: N815

    def _send(self, answer: Answer, **more: str) -> None:
        body = answer.text.encode()
        self.send_response(answer.status)
        own = {"Content-Type": answer.kind, "Content-Length": str(len(body))}
        for name, value in {**own, **self.server.headers, **more}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Logs nothing: the terminal shows the run."""
