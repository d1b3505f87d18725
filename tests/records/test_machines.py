"""Where a worker runs: on the records from where it moved, and beside the names of suspects."""

import pytest

import zeno
from support.commands import run as command
from support.fake_cluster import DIED, FakeCluster
from zeno.records.ledger import Ledger
from zeno.records.record import Record
from zeno.report.tables import ledger_columns
from zeno.training import build

TWO = {0: "gpu-01", 1: "gpu-02", 2: "gpu-02"}


def ledger_with(machines: dict[int, dict[int, str]], steps: int, failing: int = 1) -> Ledger:
    """Of three workers, one of which always dies; `machines` by the step at which they are on a record."""
    ledger = Ledger(3)
    for step in range(steps):
        kept = [worker != failing for worker in range(3)]
        ledger.add(Record(step, 0.1, kept, None, errors={failing: DIED}, machines=machines.get(step, {})))
    return ledger


def test_a_suspect_is_named_with_its_machine() -> None:
    ledger = ledger_with({0: TWO}, steps=5)
    assert [row.machine for row in ledger.rows] == ["gpu-01", "gpu-02", "gpu-02"]
    assert str(ledger) == "1 of 3 workers is suspect: 1 on gpu-02."
    assert ledger_columns(ledger.rows)["worker"] == ["0 on gpu-01", "1 on gpu-02", "2 on gpu-02"]
    assert ledger.suspect_names == ["1"]


def test_a_single_machine_is_not_mentioned() -> None:
    ledger = ledger_with({0: dict.fromkeys(range(3), "gpu-01")}, steps=5)
    assert [row.label for row in ledger.rows] == ["0", "1", "2"]


def test_a_suspect_that_moves_is_named_with_the_machine_it_failed_on() -> None:
    ledger = ledger_with({0: TWO, 6: {0: "gpu-03", 1: "gpu-03"}}, steps=8)
    assert [row.machine for row in ledger.rows] == ["gpu-03", "gpu-02", "gpu-02"]


def test_machines_survive_a_checkpoint_and_workers_that_join() -> None:
    ledger = Ledger.from_state_dict(ledger_with({0: TWO}, steps=5).state_dict())
    ledger.join(["new"])
    assert [row.label for row in ledger.rows] == ["0 on gpu-01", "1 on gpu-02", "2 on gpu-02", "new"]


def test_machines_are_read_back_from_json_and_not_compared() -> None:
    record = Record(3, 0.1, [True], None, machines={0: "gpu-01"})
    assert Record.from_json(record.to_json()).machines == {0: "gpu-01"}
    assert record == Record(3, 0.1, [True], None), "the same run gives equal records on any machines"


@pytest.mark.parametrize("machines", ['{"0": 7}', '{"one": "gpu-01"}', '["gpu-01"]', "7"])
def test_machines_of_another_type_are_not_a_record(machines: str) -> None:
    line = Record(3, 0.1, [True], None).to_json().replace('"machines":{}', f'"machines":{machines}')
    with pytest.raises(ValueError, match=r"record|machines|invalid literal"):
        Record.from_json(line)


class Moving(FakeCluster):
    """Two workers that are restarted on another machine after the second step."""

    @property
    def machines(self) -> dict[int, str]:
        return {0: "gpu-01", 1: "gpu-02" if len(self.asked) <= 2 else "gpu-03"}


def test_records_of_a_run_say_who_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    run = zeno.Run(workers=2, rule=zeno.Mean(), steps=4, eval_every=4, batch_size=5)
    size = sum(parameter.numel() for parameter in build.make_task(run).model().parameters())
    cluster = Moving([[0.0] * size] * 2)
    monkeypatch.setattr(build, "make_cluster", lambda *_: cluster)
    found = [record.machines for record in zeno.train(run)]
    assert found == [{0: "gpu-01", 1: "gpu-02"}, {}, {1: "gpu-03"}, {}]


def test_a_command_for_suspects_finds_the_machine(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = tmp_path_factory.mktemp("called") / "by"
    monkeypatch.setattr("zeno.workers.local.LocalCluster.machines", {0: "gpu-01", 1: "gpu-02"})
    told = ["--on-suspect", f"echo $ZENO_WORKER on $ZENO_MACHINE >> {called}", "--out", called.parent / "run"]
    few = ["--workers", "2", "--faulty", "1", "--fault", "crash", "--batch-size", "5", "--steps", "6"]
    assert command(monkeypatch, "train", *few, *told) == 0
    assert called.read_text() == "0 on gpu-01\n"
