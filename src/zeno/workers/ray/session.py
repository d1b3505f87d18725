"""The Ray cluster that actors run on: started and stopped by this process, or joined."""

import logging
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

CONNECT_WITHIN = 5.0  # seconds; Ray itself would try for minutes
LOOPBACK = {"127.0.0.1", "localhost", "::1"}

# Makes Ray listen on loopback only, as it does on these systems. Read when Ray is imported, and by what it starts.
LOOPBACK_ONLY = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")

# Ray prints warnings about many or dead actors to stdout, whatever its logging level. `--json` needs stdout for itself.
QUIET = ("RAY_DEDUP_LOGS_SKIP_REGEX", ".")


@contextmanager
def start_or_join(address: str | None = None) -> Iterator[None]:
    """Starts a Ray cluster on this machine for this process alone, or joins the one at `address` (or "auto").

    A cluster started here listens on loopback only, has no dashboard, and ends with the context, which also removes its
    session folder with Ray's logs. If this process uses Ray already, that cluster is used, and left running.
    """
    here = address is None
    if "ray" not in sys.modules:
        os.environ.setdefault(*QUIET)
        if here:
            os.environ.setdefault(*LOOPBACK_ONLY)
    ray = find_ray()
    if ray.is_initialized():
        yield
        return
    sigterm = signal.getsignal(signal.SIGTERM)  # Ray sets its own handler
    where: dict[str, Any] = {"address": "local", "include_dashboard": False} if here else {"address": address}
    try:
        if address is not None:
            _check_answers(address)
        context = ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        place = "start a Ray cluster on this machine" if here else f"join the Ray cluster at {address}"
        advice = "" if here else " Check the address, and on that machine `ray status`."
        raise ValueError(f"Could not {place}: {str(error).rstrip('.')}.{advice}") from error
    try:
        listens = str(ray.util.get_node_ip_address())
        if here and listens not in LOOPBACK:
            warn = logging.getLogger("zeno").warning
            warn("Ray listens on %s, not only on loopback, because it was imported before zeno", listens)
        yield
    finally:
        ray.shutdown()
        if here:
            _remove_session(Path(context.address_info["session_dir"]))
        if sigterm is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, sigterm)


def _check_answers(address: str) -> None:
    """Raises OSError or ValueError if nothing listens at host:port. Other addresses, such as auto, are left to Ray."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        if int(port) >= 2**16:
            raise ValueError(f"there is no port {port}")
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_WITHIN).close()


def _remove_session(folder: Path) -> None:
    """Removes the folder of a session that has ended, and the link to it if no other session has begun since."""
    latest = folder.with_name("session_latest")
    with suppress(OSError):
        if latest.readlink() == folder:
            latest.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def find_ray() -> ModuleType:
    """The package ray, or an error that says how to install it."""
    try:
        import ray
    except ImportError as error:
        raise ValueError(f"A Ray cluster needs Ray: pip install 'zeno-sgd[ray]'. Found: {error}.") from error
    return ray
