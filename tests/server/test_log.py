"""What is logged after a step, and what watchers receive."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import zeno
from support.own_loops import loader, make, net, sent_by
from zeno.records.folder import RECORDS_FILE, read
from zeno.records.record import summarize
from zeno.report.run_view import read_run


def server_in(folder: Path, **more: Any) -> tuple[torch.nn.Sequential, zeno.Server]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, zeno.Server(model, F.cross_entropy, optimizer, loader(), zeno.Mean(), folder=folder, **more)


def test_logged_values_belong_to_the_last_step(tmp_path: Path) -> None:
    model, server = server_in(tmp_path)
    with server:
        for step in range(4):
            server.step(sent_by(model, 3, 0, step))
            if step % 2:
                server.log(loss=torch.tensor(1.0 / step), accuracy=0.25 * step)  # type: ignore[arg-type]
        server.log(loss=float("nan"))
    records = read(tmp_path)
    assert [(r.step, r.evaluated, r.train_loss, r.accuracy) for r in records] == [
        (0, False, None, None),
        (1, True, 1.0, 0.25),
        (2, False, None, None),
        (3, True, None, 0.75),
    ]
    assert len((tmp_path / RECORDS_FILE).read_text().splitlines()) == 4 + 3
    view = read_run(tmp_path)
    assert (view.records, view.notes, view.num_lines) == (records, [], 7)
    assert view.ledger.rows == server.ledger.rows
    assert server.record == records[-1]


def test_accuracy_alone_is_no_loss_that_is_not_finite(tmp_path: Path) -> None:
    model, server = server_in(tmp_path)
    with server:
        server.step(sent_by(model, 3, 0, 0))
        server.log(accuracy=0.5)
    found = summarize(read(tmp_path))
    assert (found.accuracy, found.train_loss, found.evaluations) == (0.5, None, 0)


def test_a_record_that_differs_in_more_than_its_measurements_is_damage(tmp_path: Path) -> None:
    model, server = server_in(tmp_path)
    with server:
        server.step(sent_by(model, 3, 0, 0))
    path = tmp_path / RECORDS_FILE
    values = json.loads(path.read_text())
    del values["hash"]
    lines = [json.dumps(values), json.dumps({**values, "accuracy": 0.5}), json.dumps({**values, "lr": 0.9})]
    path.write_text("\n".join(lines) + "\n")
    assert [record.accuracy for record in read(tmp_path)] == [0.5]
    assert read_run(tmp_path).notes == ["records.jsonl is damaged at line 3: the rest is not shown."]


def test_what_was_logged_survives_a_resume(tmp_path: Path) -> None:
    model, server = server_in(tmp_path)
    for step in range(3):
        server.step(sent_by(model, 3, 0, step))
        server.log(accuracy=0.1 * step)
    state = server.state_dict()
    server.step(sent_by(model, 3, 0, 3))
    server.log(accuracy=0.9)
    server.close()
    model, later = server_in(tmp_path)
    later.load_state_dict(state)
    with pytest.raises(ValueError, match=r"logs what was measured after a step\. Found none yet"):
        later.log(loss=1.0)
    later.step(sent_by(model, 3, 0, 3))
    later.close()
    later.log(accuracy=0.4)  # opens the files again
    later.close()
    assert [record.accuracy for record in read(tmp_path)] == pytest.approx([0.0, 0.1, 0.2, 0.4])


def test_nothing_to_log_is_a_mistake() -> None:
    model, server = make()
    server.step(sent_by(model, 5, 0, 0))
    with pytest.raises(ValueError, match=r"a loss, an accuracy, or both\. Found neither"):
        server.log()


@pytest.mark.parametrize("accuracy", [93.1, -0.1, float("nan")])
def test_an_accuracy_is_a_share(accuracy: float) -> None:
    model, server = make()
    server.step(sent_by(model, 5, 0, 0))
    with pytest.raises(ValueError, match="accuracy as a number from 0 to 1"):
        server.log(accuracy=accuracy)
    assert server.record is not None
    assert not server.record.measured


def test_watchers_get_every_record_once_with_what_was_logged_and_the_ledger_after_it() -> None:
    found: list[tuple[int, float | None, int]] = []
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def watch(record: zeno.Record, ledger: zeno.Ledger) -> None:
        found.append((record.step, record.accuracy, ledger.steps))

    with zeno.Server(model, F.cross_entropy, optimizer, loader(), zeno.Mean(), watchers=[watch]) as server:
        for step in range(3):
            server.step(sent_by(model, 3, 0, step))
            assert len(found) == step
            server.log(accuracy=step / 10)
    assert found == [(0, 0.0, 1), (1, 0.1, 2), (2, 0.2, 3)]


def test_tensorboard_and_prometheus_show_a_loop_with_names(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("prometheus_client")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board, metrics = zeno.TensorBoard(tmp_path), zeno.Metrics(0)
    model, server = server_in(tmp_path, watchers=[board, metrics])
    hostile = 'a"b\\c{worker="x"} <script>[red]$|*'
    with server:
        for step in range(4):
            sent = sent_by(model, 3, 0, step)
            names = ["gpu-07", hostile] if step < 2 else ["gpu-07", "joined"]
            server.step(dict(zip(names, sent, strict=False)))
            server.log(loss=0.5, accuracy=0.25)
        server.step({"gpu-07": None, "joined": sent[0], hostile: sent[1]})
        server._recorder.pass_on()
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    parser = pytest.importorskip("prometheus_client.parser")
    samples = [s for family in parser.text_string_to_metric_families(text) for s in family.samples]
    evidence = {s.labels["worker"] for s in samples if s.name == "zeno_evidence"}
    assert evidence == {"gpu-07", "joined", hostile}
    unasked = {s.labels["worker"]: s.value for s in samples if s.name == "zeno_quarantined_steps_total"}
    assert unasked == {"gpu-07": 0, "joined": 2, hostile: 2}
    errors = [(s.labels, s.value) for s in samples if s.name == "zeno_errors_total"]
    assert errors == [({"worker": "gpu-07", "kind": "late"}, 1)]
    assert {s.name: s.value for s in samples}["zeno_accuracy_ratio"] == 0.25
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert {"evidence_log10/gpu-07", "evidence_log10/joined", f"evidence_log10/{hostile}"} <= set(
        events.Tags()["scalars"]
    )
    assert [(e.step, e.value) for e in events.Scalars("accuracy")] == [(step, 0.25) for step in range(4)]
    assert [e.step for e in events.Scalars("suspects")] == [0, 1, 2, 3, 4]
    assert [e.step for e in events.Scalars("evidence_log10/joined")] == [2, 3, 4]
    assert "seconds/rule" in events.Tags()["scalars"]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=5)
