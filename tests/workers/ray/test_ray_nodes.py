"""Machines that go away, freeze and join, on one machine: each node of the Ray cluster has its own raylet.

A scenario runs this file as a script in its own process, since other tests keep a Ray session in theirs.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import zeno
from zeno.workers.ray import RayCluster

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")]

RUN = zeno.Run(workers=4, batch_size=50, steps=5000, eval_every=1, rule=zeno.Zeno(trim=2, batch_size=32))
PACE = 0.2  # seconds from one step to the next: machines come and go over many of them
IN_A_ROW, WAITING = 10, 30  # steps that are looked at while nothing changes, and while there is no room
NOTICE_SOONER = {  # a dead machine at once, a frozen one after three times five seconds
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
}

Steps = Generator[None, zeno.Record, None]


# In the process of a scenario


class Over(KeyboardInterrupt):
    """The scenario is complete, and ends the run as Ctrl-C would."""


class Seen(RayCluster):
    """A cluster that knows the node of each actor."""

    made: "list[Seen]" = []  # noqa: RUF012

    def __enter__(self) -> "Seen":
        self.made.append(self)
        super().__enter__()
        return self

    def homes(self) -> list[str]:
        """The node of each actor."""
        ray = import_module("ray")

        def node(actor: object) -> str:
            return str(import_module("ray").get_runtime_context().get_node_id())

        return [str(ray.get(actor.handle.__ray_call__.remote(node), timeout=60)) for actor in self.actors]


class Machines:
    """A head without CPUs, for the driver, and two machines with a CPU each."""

    def __init__(self) -> None:
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": NOTICE_SOONER}
        self.cluster: Any = import_module("ray.cluster_utils").Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.join(), self.join()]
        self.frozen: list[int] = []

    def join(self) -> Any:
        return self.cluster.add_node(num_cpus=1)

    def remove(self, node_id: str) -> None:
        """As if the plug were pulled, and the network notified at once."""
        self.cluster.remove_node(self._node(node_id), allow_graceful=False)

    def freeze(self, node_id: str) -> None:
        """As if the cable were pulled: no message arrives, and nobody is notified."""
        raylet = self._node(node_id).all_processes["raylet"][0].process.pid
        self.frozen = [raylet, *children(raylet)]
        for pid in self.frozen:
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self.frozen:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGCONT)

    def _node(self, node_id: str) -> Any:
        return next(node for node in self.nodes if node.node_id == node_id)


def children(parent: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=True)
    return [int(pid) for pid in listed.stdout.split()]


def until(holds: Callable[[zeno.Record], bool]) -> Steps:
    while not holds((yield)):
        pass


def more(steps: int) -> Steps:
    for _ in range(steps):
        yield


def scenario(what: str, cpus_per_actor: float, deadline: float, file: str) -> None:
    """Trains while machines leave and join, and records what happens."""
    machines = Machines()
    records: list[zeno.Record] = []
    seen: dict[str, Any] = {"at": {}}  # when: the number of records by then

    def happens(name: str) -> None:
        seen["at"][name] = len(records)

    def play() -> Steps:
        yield from more(IN_A_ROW)
        cluster = Seen.made[0]
        homes = seen["homes"] = cluster.homes()
        lost = seen["lost node"] = next(node.node_id for node in machines.nodes if node.node_id in homes)
        there = [actor for actor, home in zip(cluster.actors, homes, strict=True) if home == lost]
        seen["lost"] = [worker for actor in there for worker in actor.workers]
        happens("leaves")
        if what == "freezes":
            machines.freeze(lost)
        else:
            machines.remove(lost)
        yield from until(lambda record: record.workers["lost"] > 0)
        happens("away")
        if what == "another joins":
            yield from more(WAITING)
            happens("joins")
            seen["new node"] = machines.join().node_id
        yield from until(lambda record: not record.errors)
        happens("back")
        seen["homes then"] = cluster.homes()
        machines.thaw()
        yield from more(IN_A_ROW)
        happens("over")

    script = play()
    next(script)

    def on_record(record: zeno.Record) -> None:
        records.append(record)
        try:
            script.send(record)
        except StopIteration:
            raise Over from None
        time.sleep(PACE)

    setup = zeno.ExecutionSettings(
        cluster="ray", address=machines.cluster.address, cpus_per_actor=cpus_per_actor, deadline=deadline, patience=2
    )
    import_module("zeno.workers.ray").RayCluster = Seen  # type: ignore[attr-defined]
    try:
        zeno.train(RUN, on_record=on_record, execution=setup)
    except Over:
        pass
    finally:
        seen["records"] = [record.to_json() for record in records]
        Path(file).write_text(json.dumps(seen))
        machines.cluster.shutdown()


# In the process of the tests


@dataclass
class Story:
    """The records of a scenario."""

    records: list[zeno.Record]
    at: dict[str, int]
    seen: dict[str, Any]

    def between(self, start: str, end: str) -> list[zeno.Record]:
        return self.records[self.at[start] : self.at[end]]

    def reasons(self, start: str, end: str) -> list[str]:
        """All of them, once, in order of their first step."""
        records = self.between(start, end)
        return list(dict.fromkeys(str(error) for record in records for error in record.errors.values()))

    def loss(self, at: str) -> float:
        loss = self.records[self.at[at] - 1].train_loss
        assert loss is not None
        return loss


def watch(what: str, cpus_per_actor: float, deadline: float) -> Story:
    """Runs a scenario on loopback, with its own files and token."""
    with tempfile.TemporaryDirectory(prefix="zeno-", dir="/tmp", ignore_cleanup_errors=True) as folder:  # for sockets
        file = Path(folder) / "seen.json"
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_TMPDIR": folder,
        }
        command = [sys.executable, __file__, what, str(cpus_per_actor), str(deadline), str(file)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr[-5000:]
        seen = json.loads(file.read_text())
    story = Story([zeno.Record.from_json(line) for line in seen.pop("records")], seen.pop("at"), seen)
    assert "over" in story.at, (story.at, story.records[-1], done.stderr[-5000:])
    return story


def check(story: Story) -> None:
    """What holds of every scenario: two workers are lost and come back, and the other two never miss a step."""
    seen, records = story.seen, story.records
    assert len(set(seen["homes"])) == 2, "the two actors are spread over the machines"
    lost = set(seen["lost"])
    assert len(lost) == 2, "and have two workers each"
    assert [record.errors for record in records[: story.at["leaves"]]] == [{}] * story.at["leaves"]
    for record in records:
        assert record.skipped is None
        assert set(record.errors) <= lost
        assert record.kept is not None
        assert sum(record.kept) == 2
    for record in story.between("away", "back")[:-1]:
        assert set(record.errors) == lost
        assert record.workers == {"alive": 2, "late": 0, "lost": 2}
        assert not any(record.kept[worker] for worker in lost if record.kept)
    assert [record.errors for record in story.between("back", "over")] == [{}] * IN_A_ROW, "they are back, and stay"
    assert {tuple(record.workers.values()) for record in story.between("back", "over")} == {(4, 0, 0)}
    assert seen["lost node"] not in seen["homes then"]
    assert story.loss("leaves") > story.loss("back") > story.loss("over"), "it learned without them, and with them"


def test_workers_of_a_lost_machine_wait_for_room_and_come_back_on_one_that_joins() -> None:
    story = watch("another joins", cpus_per_actor=1.0, deadline=30.0)
    check(story)
    assert story.reasons("leaves", "over") == ["died"], "no step ran into its deadline"
    waiting = story.between("away", "joins")
    assert [sorted(record.errors) for record in waiting] == [story.seen["lost"]] * WAITING, "the other one is full"
    assert story.seen["new node"] in story.seen["homes then"]


def test_workers_that_need_less_come_back_on_a_machine_that_is_left() -> None:
    story = watch("nobody joins", cpus_per_actor=0.4, deadline=30.0)
    check(story)
    assert story.reasons("leaves", "over") == ["died"]


def test_a_machine_that_freezes_is_given_up_after_some_deadlines_and_does_no_harm_when_it_wakes() -> None:
    story = watch("freezes", cpus_per_actor=0.4, deadline=5.0)
    check(story)
    assert story.reasons("leaves", "over") == [
        "no answer in 5.0 s",
        "no answer in 5.0 s, 2 times in a row: restarted",
        "is being restarted: it did not answer",
    ]


if __name__ == "__main__":
    scenario(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
