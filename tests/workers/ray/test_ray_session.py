"""What a Ray cluster that this process started leaves behind."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

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
