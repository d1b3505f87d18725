"""What a Ray cluster that this process started leaves behind."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from zeno.workers.ray import session

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")

SCRIPT = """
import sys
from pathlib import Path
from zeno.workers.ray.session import start_or_join

temporary = Path(sys.argv[1])
def sessions():
    return {path.name for path in temporary.rglob("session_*") if path.parent.name == "ray"}

with start_or_join():
    import ray
    assert len(sessions()) == 2, "a folder, and a link to it"
assert sessions() == set(), "all that was started here is gone"

ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=1)
before = sessions()
with start_or_join():
    assert ray.is_initialized()
assert ray.is_initialized()
ray.shutdown()
assert len(before) == 2 and sessions() == before, "what others started is theirs"
"""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder with a short name: those of sockets have at most 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="zr", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_the_folder_of_a_session_that_was_started_here_is_removed(temporary: Path) -> None:
    environment = {**os.environ, "RAY_TMPDIR": str(temporary)}
    command = [sys.executable, "-c", SCRIPT, str(temporary)]
    subprocess.run(command, env=environment, check=True, timeout=200)


def test_an_address_at_which_nothing_listens_is_an_error_at_once() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody else gets the port, and nobody listens
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        command = [sys.executable, "-m", "zeno", "train", "--cluster", "ray", "--address", address]
        began = time.monotonic()
        ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"error: Could not join the Ray cluster at {address}: [Errno ")
    assert ended.stderr.endswith("refused. Check the address, and on that machine `ray status`.\n")
    assert time.monotonic() - began < 60, "Ray would try for minutes"


def test_addresses_of_host_and_port_are_tried_before_ray() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        session._check_answers(f"127.0.0.1:{server.getsockname()[1]}")
    for other in ("auto", "local", "ray://127.0.0.1:1"):
        session._check_answers(other)
    with pytest.raises(ValueError, match="there is no port 99999"):
        session._check_answers("127.0.0.1:99999")
    with pytest.raises(OSError, match="refused"):
        session._check_answers("[127.0.0.1]:1")


def test_an_error_of_ray_ends_with_one_full_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def fail(**given: object) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fail)
    words = r"at auto: Could not find any running Ray instance\. Check the address"
    with pytest.raises(ValueError, match=words), session.start_or_join("auto"):
        pass
