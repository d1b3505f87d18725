"""Twenty real actors, and a thousand steps."""

import os
import signal
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import zeno
from zeno.problem.problem import Problem
from zeno.problem.tasks import with_model
from zeno.workers.ray import RayCluster
from zeno.workers.ray.session import find_ray
from zeno.workers.reply import ErrorKind, ReplyError
from zeno.workers.worker import Worker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray"),
    pytest.mark.usefixtures("ray_session"),
]

TWENTY = zeno.ExecutionSettings(cluster="ray", workers_per_actor=1)


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> list[RayCluster]:
    """The clusters that a test starts, as they are started."""
    found: list[RayCluster] = []
    enter = RayCluster.__enter__

    def spy(self: RayCluster) -> RayCluster:
        found.append(self)
        return enter(self)

    monkeypatch.setattr(RayCluster, "__enter__", spy)
    return found


def test_nineteen_of_twenty_are_killed_in_one_step_and_come_back(clusters: list[RayCluster]) -> None:
    run = zeno.Run(steps=150, eval_every=150, rule=zeno.Zeno(trim=19, batch_size=32), faulty=2)
    alive: list[int] = []

    def hurt(record: zeno.Record) -> None:
        alive.append(record.workers["alive"])
        if record.step == 10:
            for actor in clusters[0].actors[:-1]:
                assert actor.pid is not None
                os.kill(actor.pid, signal.SIGKILL)
        if alive[-1] < 20:
            time.sleep(0.5)  # so that the run does not end before they are back

    records = zeno.train(run, on_record=hurt, execution=TWENTY)
    assert records[11].errors == dict.fromkeys(range(19), ReplyError(ErrorKind.DIED, "died"))
    assert alive[11] == 1
    assert alive[-1] == 20, "they are back"
    assert records[-1].errors == {}
    assert all(r.skipped is None for r in records)
    undisturbed = zeno.train(run)
    assert records[:11] == undisturbed[:11]
    assert records[-1].accuracy is not None
    assert undisturbed[-1].accuracy is not None
    assert abs(records[-1].accuracy - undisturbed[-1].accuracy) < 0.05


def pss(pid: int) -> float:
    """Megabytes of memory that are a process's own, shared ones by its share."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def test_twenty_workers_of_one_machine_share_the_data_set() -> None:
    class Idle:
        """An actor that has torch imported, and does nothing. In here, so that it travels as a whole."""

        def here(self) -> int:
            import torch

            torch.set_num_threads(1)
            return os.getpid()

    ray = find_ray()
    pictures = torch.randint(256, (50_000, 3, 32, 32), dtype=torch.uint8)
    dataset = zeno.Dataset(pictures, torch.arange(50_000) % 10, classes=10)
    task = with_model(zeno.Task(dataset, dataset, torch.nn.Identity), "small_cnn")
    problem = Problem(task.model(), task.loss)
    workers = [Worker(i, problem, dataset, torch.arange(50_000), 100, 0) for i in range(20)]
    with RayCluster(workers, workers_per_actor=1, deadline=120.0) as cluster:
        idle = ray.remote(Idle).options(num_cpus=0).remote()
        nothing = ray.get(idle.here.remote())
        for step in range(3):
            replies = list(cluster.gradients(problem.flat.clone(), problem.buffers, step))
            assert [r.error for r in replies] == [None] * 20
        extra = [pss(actor.pid) - pss(nothing) for actor in cluster.actors if actor.pid is not None]
        ray.kill(idle)
    assert len(extra) == 20
    assert max(extra) < 150, extra
    assert pictures.numel() / 2**20 > 145, "a copy of the data set in each would show"


def test_memory_does_not_grow_over_a_thousand_steps(clusters: list[RayCluster]) -> None:
    ray = find_ray()
    sizes: dict[int, dict[str, float]] = {}

    def look(record: zeno.Record) -> None:
        if record.step in (200, 999):
            pids = [actor.pid for actor in clusters[0].actors if actor.pid is not None]
            used = ray.cluster_resources()["object_store_memory"] - ray.available_resources()["object_store_memory"]
            actors = {f"actor {i}": pss(pid) for i, pid in enumerate(pids)}
            sizes[record.step] = {"driver": pss(os.getpid()), "object store": used / 2**20, **actors}

    run = zeno.Run(steps=1000, model="mlp(hidden=2000)", batch_size=10, eval_every=1000, rule=zeno.Zeno(trim=4))
    records = zeno.train(run, on_record=look, execution=replace(TWENTY, workers_per_actor=10))
    assert len(records) == 1000
    assert all(not r.errors for r in records)
    for name, before in sizes[200].items():  # a step brings 12 MB of gradients, 800 of them 9 GB
        assert sizes[999][name] < before + 30, (name, sizes)


def test_a_run_of_twenty_actors_has_the_records_of_a_run_in_this_process() -> None:
    run = zeno.Run(steps=30, eval_every=10, rule=zeno.Zeno(trim=13, batch_size=32), faulty=12, fault=zeno.BitFlip())
    assert zeno.train(run, execution=TWENTY) == zeno.train(run)
