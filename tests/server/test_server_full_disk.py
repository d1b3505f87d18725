"""`zeno.Server` with a folder on a full disk: no step is taken that is not written down."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zeno
from support.full_disk import files_of_at_most
from support.own_loops import loader, net, parameters, sent_by
from zeno.records.folder import RECORDS_FILE, read


def begin(folder: Path) -> tuple[nn.Sequential, zeno.Server]:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rule = zeno.Zeno(trim=2, batch_size=32)
    return model, zeno.Server(model, F.cross_entropy, optimizer, loader(), rule, folder=folder)


def state_of(model: nn.Module, server: zeno.Server, folder: Path) -> tuple[list[Tensor], tuple[object, ...]]:
    optimizer = [value.clone() for state in server.optimizer.state.values() for value in state.values()]
    records = (folder / RECORDS_FILE).read_bytes()
    return [parameters(model), *optimizer], (server.steps, server.record, server.ledger.steps, records)


@pytest.mark.parametrize("room", [0, 1, 10, 40, 100, 200])  # bytes, less than a line takes
def test_a_step_that_cannot_be_written_is_not_taken(room: int, tmp_path: Path) -> None:
    model, server = begin(tmp_path)
    for step in range(4):
        for attempt in range(2 if step else 0):
            before = state_of(model, server, tmp_path)
            full = files_of_at_most((tmp_path / RECORDS_FILE).stat().st_size + room)
            with full, pytest.raises(OSError, match=rf"{RECORDS_FILE}"):
                server.step(sent_by(model, 5, 2, step))
            after = state_of(model, server, tmp_path)
            assert all(torch.equal(one, other) for one, other in zip(before[0], after[0], strict=True)), attempt
            assert before[1] == after[1]
        server.step(sent_by(model, 5, 2, step))
    server.close()
    assert [record.step for record in read(tmp_path)] == [0, 1, 2, 3]
    assert server.ledger.steps == 4


def test_a_first_step_on_a_full_disk_can_be_repeated(tmp_path: Path) -> None:
    model, server = begin(tmp_path / "run")
    x = parameters(model)
    with files_of_at_most(0), pytest.raises(OSError, match=r"run\.toml"):
        server.step(sent_by(model, 5, 2, 0))
    assert torch.equal(parameters(model), x)
    assert list((tmp_path / "run").iterdir()) == [], "no temporary file takes space"
    server.step(sent_by(model, 5, 2, 0))
    server.close()
    assert len(read(tmp_path / "run")) == 1


def test_a_skipped_step_that_cannot_be_written_can_be_repeated(tmp_path: Path) -> None:
    model, server = begin(tmp_path)
    server.step(sent_by(model, 5, 2, 0))
    nothing = [None] * 5
    size = (tmp_path / RECORDS_FILE).stat().st_size
    with files_of_at_most(size + 30), pytest.raises(OSError, match=RECORDS_FILE):
        server.step(nothing)
    with pytest.raises(zeno.TooFewUsable):
        server.step(nothing)
    server.close()
    assert [(record.step, record.skipped is None) for record in read(tmp_path)] == [(0, True), (1, False)]


def test_the_record_of_a_step_that_the_optimizer_does_not_take_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, server = begin(tmp_path)
    server.step(sent_by(model, 5, 2, 0))
    before = copy.deepcopy(state_of(model, server, tmp_path)[1])

    def fail(*arguments: object) -> None:
        raise RuntimeError("no step")

    with monkeypatch.context() as patch:
        patch.setattr(server.optimizer, "step", fail)
        with pytest.raises(RuntimeError, match="no step"):
            server.step(sent_by(model, 5, 2, 1))
    assert state_of(model, server, tmp_path)[1] == before
    server.step(sent_by(model, 5, 2, 1))
    server.close()
    assert [record.step for record in read(tmp_path)] == [0, 1]
    assert server.record is not None
    assert server.record.seconds["update"] > 0
