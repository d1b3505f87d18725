"""The Ray cluster that actors run on: one that this process starts and stops, or one that it joins."""

import logging
import os
import signal
import sys
import threading
from types import ModuleType, TracebackType
from typing import Any

LOOPBACK = {"127.0.0.1", "localhost", "::1"}
ON_LOOPBACK = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
"""As on these two systems, where Ray keeps to loopback; read once, when Ray is imported, and by what it starts."""


NOT_SAID = ("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
"""Ray tells of many actors, or dead ones, on stdout, whatever it was told; `--json` has that for itself."""


class Session:
    """Starts a Ray cluster on this machine, for this process alone; or joins the one at `address` (or "auto").

    One that is started here listens on loopback only, has no dashboard, and ends with the session. Where this process
    uses Ray already, that cluster is taken, and left running.
    """

    def __init__(self, address: str | None = None) -> None:
        self.address = address
        self._ours = False
        self._sigterm: Any = None  # what handled it before

    def __enter__(self) -> "Session":
        here = self.address is None
        if "ray" not in sys.modules:
            os.environ.setdefault(*NOT_SAID)
            if here:
                os.environ.setdefault(*ON_LOOPBACK)
        ray = find_ray()
        if ray.is_initialized():
            return self
        log = logging.getLogger("zeno")
        before = signal.getsignal(signal.SIGTERM)  # Ray sets one of its own
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            if here:
                ray.init(address="local", include_dashboard=False, **options)
            else:
                ray.init(address=self.address, **options)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            where = "on this machine" if here else f"at {self.address}"
            raise ValueError(f"There is no Ray cluster to be had {where}: {error}") from error
        self._ours = True
        self._sigterm = before
        address = str(ray.util.get_node_ip_address())
        if here and address not in LOOPBACK:
            log.warning("Ray listens on %s, not only on loopback: it was imported before zeno could tell it", address)
        return self

    @property
    def cpus(self) -> float:
        """Of all machines of the cluster."""
        return float(find_ray().cluster_resources().get("CPU", 0))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ours:
            find_ray().shutdown()
            self._ours = False
            if self._sigterm is not None and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, self._sigterm)


def find_ray() -> ModuleType:
    """The package, or an error that says how to get it."""
    try:
        import ray
    except ImportError as error:
        raise ValueError(f"A Ray cluster needs Ray: pip install 'zeno-sgd[ray]'. Found: {error}.") from error
    return ray
