"""A run on Ray gives the golden records of `tests/training/golden`."""

import pytest

import zeno
from training.test_golden import RUNS, assert_same
from zeno.training.settings import from_settings


@pytest.mark.usefixtures("ray_session")
def test_a_run_on_ray_gives_the_golden_records() -> None:
    run = from_settings(RUNS["ray"]["settings"])
    assert_same(zeno.train(run, execution=zeno.ExecutionSettings(cluster="ray")), "ray")
