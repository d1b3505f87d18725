"""Local steps and momentum on a real Ray cluster: the records are those of a run in this process."""

from importlib.util import find_spec

import pytest

import zeno

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray"),
    pytest.mark.usefixtures("ray_session"),
]


def test_local_steps_and_momentum_give_the_same_records_here_and_on_ray() -> None:
    run = zeno.Run(
        workers=6,
        batch_size=20,
        steps=8,
        eval_every=4,
        rule=zeno.Zeno(trim=3),
        faulty=3,
        fault=zeno.LabelFlip(on=1) + zeno.SignFlip(on=1) + zeno.Zero(chance=0.5),
        schedule="steplr(step_size=3)",
        local_steps=3,
        worker_momentum=0.9,
    )
    assert zeno.train(run, execution=zeno.ExecutionSettings(cluster="ray")) == zeno.train(run)
