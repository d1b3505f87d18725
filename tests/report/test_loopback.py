"""What the live view and the metrics port answer, and whom."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from support.made_runs import made, watched, write
from zeno.report import loopback
from zeno.report.prometheus import Metrics


@contextmanager
def metrics(tmp_path: Path) -> Iterator[int]:
    pytest.importorskip("prometheus_client")
    with Metrics(0) as served:
        yield served.port


@contextmanager
def live_view(tmp_path: Path) -> Iterator[int]:
    with watched([write(tmp_path / "run", made(steps=3))]) as (address, _):
        yield int(address.rstrip("/").rsplit(":", 1)[1])


Serving = Callable[[Path], AbstractContextManager[int]]  # folder -> port
SERVERS = pytest.mark.parametrize("serving", [metrics, live_view], ids=["metrics", "live view"])


def ask(port: int, *lines: str) -> str:
    """Sends a request as it is; returns all that comes back until the connection is closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall("".join(f"{line}\r\n" for line in (*lines, "")).encode())
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


@SERVERS
def test_only_requests_to_this_machine_by_its_own_name_are_answered(serving: Serving, tmp_path: Path) -> None:
    path = "/metrics" if serving is metrics else "/"
    with serving(tmp_path) as port:
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost:x"):
            answer = ask(port, f"GET {path} HTTP/1.1", f"Host: {host}")
            assert answer.startswith("HTTP/1.0 403 ")
            assert "zeno_steps_total" not in answer
        assert ask(port, f"GET {path} HTTP/1.1").startswith("HTTP/1.0 403 "), "without a name"
        for host in (f"localhost:{port}", f"[::1]:{port}", "127.0.0.1"):
            answer = ask(port, f"GET {path} HTTP/1.1", f"Host: {host}")
            assert answer.startswith("HTTP/1.0 200 ")
            assert "X-Content-Type-Options: nosniff" in answer
        assert ask(port, f"POST {path} HTTP/1.1", "Host: localhost").startswith("HTTP/1.0 405 ")
        assert ask(port, "GET /../run.toml HTTP/1.1", "Host: localhost").startswith("HTTP/1.0 404 ")


@SERVERS
def test_an_invalid_address_is_a_bad_request(
    serving: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path) as port:
        for address in ("http://[::1", "http://[x/metrics", "https://]:80/"):
            assert ask(port, f"GET {address} HTTP/1.1", "Host: localhost").startswith("HTTP/1.0 400 ")
    assert capsys.readouterr().err == ""


@SERVERS
def test_a_silent_connection_is_closed(serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback._Handler, "timeout", 0.3)
    with (
        serving(tmp_path) as port,
        socket.create_connection(("127.0.0.1", port), timeout=20) as connection,
    ):
        start = time.monotonic()
        assert connection.recv(1) == b""
        assert time.monotonic() - start < 15


def send_slowly(connection: socket.socket, raw: bytes) -> None:
    """Byte by byte, never silent for half a second."""
    for byte in raw:
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


@SERVERS
def test_a_client_that_sends_a_byte_at_a_time_is_cut_off(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loopback._Handler, "timeout", 0.5)
    with (
        serving(tmp_path) as port,
        socket.create_connection(("127.0.0.1", port), timeout=20) as connection,
    ):
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
        with pytest.raises(ConnectionError):
            send_slowly(connection, 200 * b"y")
        assert ask(port, "GET / HTTP/1.1", "Host: localhost").startswith("HTTP/1.0 200 ")


@SERVERS
def test_a_reader_that_goes_away_prints_nothing(
    serving: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path) as port:
        for _ in range(5):
            connection = socket.create_connection(("127.0.0.1", port), timeout=20)
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # reset instead of a goodbye
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            connection.close()
        assert ask(port, "GET / HTTP/1.1", "Host: localhost").startswith("HTTP/1.0 200 ")
        time.sleep(0.2)
    assert capsys.readouterr().err == ""
