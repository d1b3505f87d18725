"""Requests to the ports that are open during training: the live page and the metrics."""

import atexit
import contextlib
import functools
import socket
import socketserver
import sys
from urllib.parse import urlsplit

import numpy as np

from fuzz.folders import made_run
from zeno.report.page.live import opened
from zeno.report.prometheus import Metrics

METHODS = (b"GET", b"HEAD", b"POST", b"TRACE", b"CONNECT", b"get", b"", b"\xff" * 9)
PATHS = (
    *(b"/", b"/since?step=1", b"/since?step=x", b"/metrics", b"/../../etc/passwd", b"http://[::1", b"/%00", b"*", b""),
    *(b"/since?run=..%2f..&step=9" + b"9" * 5000, b"/" + b"a" * 70_000, b"//" * 100, b"/since?generation=-1"),
)
HOSTS = (b"127.0.0.1", b"localhost:80", b"evil.example", b"", b"127.0.0.1\r\nHost: other", b"\xff\xfe", b"[::1")
errors: list[BaseException | None] = []  # in threads of the servers


def requests(rng: np.random.Generator) -> None:
    """Each one gets an answer or a closed connection, no thread fails, and the next reader is served."""
    host, port = str(rng.choice(["page", "metrics"])), _ports()
    errors.clear()
    request = _request(rng)
    answer = _send(port[host], request)
    assert answer is not None, f"the {host} kept a connection open"
    if not any(b"Host: " + name in request for name in (b"127.0.0.1\r\n", b"localhost:80\r\n")):
        assert not any(content in answer for content in (b"zeno_steps", b"uPlot", b'"generation":')), answer[:200]
    path = b"/since?step=0" if host == "page" else b"/metrics"
    plain = _send(port[host], b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    assert b" 200 " in (plain or b"")[:20], f"the {host} does not answer any more: {plain!r:.200}"
    assert not errors, f"the {host} raised {errors[0]!r}"


def _request(rng: np.random.Generator) -> bytes:
    if rng.random() < 0.2:
        return rng.bytes(int(rng.integers(0, 300))) + b"\r\n\r\n"
    method, path, host = (many[rng.integers(len(many))] for many in (METHODS, PATHS, HOSTS))
    version = (b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9.9", b"", b"HTTP/x")[rng.integers(5)]
    more = (b"", b"Content-Length: -1\r\n", b"Content-Length: 5\r\n", b"X: " + b"y" * 70_000 + b"\r\n", b"A\r\n")
    lines = method + b" " + path + b" " + version + b"\r\nHost: " + host + b"\r\n" + more[rng.integers(len(more))]
    whole = lines + b"Connection: close\r\n\r\n"
    return whole[: int(rng.integers(len(whole)))] if rng.random() < 0.1 else whole


def _send(port: int, raw: bytes) -> bytes | None:
    """The answer to these bytes, after which this end is closed for writing; None if there is no end of it."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
        found = b""
        try:
            while part := connection.recv(65_536):
                found += part
        except TimeoutError:
            return None
        except OSError:  # closed with bytes unread
            pass
        return found


@functools.cache
def _ports() -> dict[str, int]:
    socketserver.BaseServer.handle_error = lambda *_: errors.append(sys.exc_info()[1])  # type: ignore[method-assign]
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    address, _ = stack.enter_context(opened([made_run()]))
    metrics = stack.enter_context(Metrics(0))
    return {"page": urlsplit(address).port or 0, "metrics": metrics.port}
