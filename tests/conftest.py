"""One thread: the tensors of the tests are small, and the tests share their cores with whatever else runs."""

import signal
from collections.abc import Iterator

import pytest
import torch

from zeno.workers.ray import start_or_join

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background job: children would never hear of Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One Ray cluster, on loopback, for all tests of a run that need one."""
    with start_or_join():
        yield
