"""The real thing: a SuperLink and SuperNodes as processes on loopback, with TLS and with keys of the nodes."""

import ipaddress
import json
import time
from pathlib import Path

import pytest
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg
from typer.testing import CliRunner

from federated import in_process, task
from support.deployment import CONNECTED, Deployment, deployment
from support.sockets import listening
from zeno.cli.app import app
from zeno.records.folder import read
from zeno.records.record import Record

STEPS = 100  # of local training

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="looks at sockets in /proc")


def start_nodes(made: Deployment, faults: list[str]) -> list[str]:
    """Starts one SuperNode for each fault, `node0` and so on; returns their ids."""
    ids = [made.register(f"node{k}") for k in range(len(faults))]
    for k in range(len(faults)):
        made.start_supernode(f"node{k}", config_of(k, faults))
    for k in range(len(faults)):
        made.wait_for(f"node{k}", CONNECTED + ids[k])
    return ids


def config_of(k: int, faults: list[str]) -> str:
    return f'partition-id={k} num-partitions={len(faults)} fault="{faults[k]}"'


def run_config(folder: Path, **more: float) -> str:
    values = {"task": '"digits"', "folder": f'"{folder}"', "local-steps": STEPS, "round-timeout": 120.0, **more}
    return " ".join(f"{name}={value}" for name, value in values.items())


def assert_only_on_loopback(made: Deployment, at_least: int) -> None:
    found = listening(made.pids())
    assert len(found) >= at_least
    assert all(ipaddress.ip_address(address).is_loopback for address in found), found


def failed(records: list[Record], names: list[str]) -> dict[str, list[int]]:
    """By node, the rounds in which its reply was not usable."""
    return {name: [record.step for record in records if names.index(name) in record.errors] for name in names}


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_a_node_that_sends_undecodable_bytes_ends_nothing_and_a_stranger_is_not_let_in(tmp_path: Path) -> None:
    run = tmp_path / "run"
    faults = ["undecodable", "", ""]
    with deployment(tmp_path) as made:
        ids = start_nodes(made, faults)
        made.new_key("stranger")
        made.start_supernode("stranger", 'partition-id=0 num-partitions=3 fault="nan"')
        made.start_run(run_config(run, **{"num-server-rounds": 2, "min-nodes": 3}))
        made.wait_for("node1", "Receiving: train message")
        assert_only_on_loopback(made, at_least=4)
        assert made.wait_for_run(timeout=600) == "finished:completed", made.log("run")
        assert made.processes["stranger"].poll() is not None, "a node with an unknown key must not run"
    records = read(run)
    assert set(records[0].joined or []) == set(ids), "the stranger must not be asked"
    assert len(records) == 2
    for record in records:
        assert list(record.errors) == [(records[0].joined or []).index(ids[0])]
        assert next(iter(record.errors.values())).text.startswith("sent bytes that Flower cannot decode")
    assert made.pids() == set(), "all processes must have ended"


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_four_of_six_are_malicious_and_one_node_is_killed_in_a_round(tmp_path: Path) -> None:
    run, rounds = tmp_path / "run", 26
    faults = ["label flip", "sign flip", "nan", "undecodable", "", ""]
    with deployment(tmp_path) as made:
        ids = start_nodes(made, faults)
        made.start_run(run_config(run, **{"num-server-rounds": rounds, "min-nodes": 2}))
        made.wait_for("node5", "Receiving: train message", times=2)
        time.sleep(0.5)  # the client trains
        assert_only_on_loopback(made, at_least=7)
        made.kill("node5")
        made.start_again("node5", config_of(5, faults))
        assert made.wait_for_run(timeout=2400) == "finished:completed", made.log("run")
    records = read(run)
    names = records[0].joined or []
    assert len(records) == rounds
    assert set(names) == set(ids), "a node that is started again has the same id"
    said = CliRunner().invoke(app, ["suspects", str(run), "--json"])
    print(said.output)
    assert set(json.loads(said.output)[0]["suspect_names"]) == set(ids[:4])
    unusable = failed(records, names)
    assert unusable[ids[4]] == []
    assert len(unusable[ids[5]]) == 1, "only in the round in which it was killed"
    assert names.index(ids[5]) not in records[-1].quarantined, "it was asked again"
    alone = good_alone(faults, rounds)
    print("accuracy:", records[-1].accuracy, "good clients alone:", alone)
    assert records[-1].accuracy is not None
    assert records[-1].accuracy > alone - 0.02


def good_alone(faults: list[str], rounds: int) -> float:
    """The accuracy that FedAvg reaches with the good clients only, in this process."""
    config = in_process.run_config(task="digits", **{"min-nodes": 2, "local-steps": STEPS})
    clients = {k: in_process.client(k, len(faults), "", config) for k, fault in enumerate(faults) if not fault}
    settings = task.Settings.of(config)
    strategy, arrays = FedAvg(**task.which_nodes(settings)), ArrayRecord(task.new_model(settings).state_dict())
    result = strategy.start(in_process.InProcess(clients), arrays, num_rounds=rounds)
    return float(str(task.evaluation(settings)(rounds, result.arrays)["accuracy"]))
