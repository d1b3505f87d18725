"""A run on a full disk: it ends with an error that names the file, and goes on once there is space."""

from contextlib import ExitStack
from pathlib import Path

import pytest
import safetensors.torch
import torch

import zeno
from support.full_disk import files_of_at_most
from zeno.records.folder import CHECKPOINTS, MODEL_FILE, RECORDS_FILE, read

RUN = zeno.Run(workers=5, batch_size=20, steps=14, eval_every=5, rule=zeno.Zeno(trim=2), faulty=2)
OFTEN = zeno.ExecutionSettings(checkpoint_every=3)


@pytest.mark.parametrize(
    ("room", "file", "steps"),
    [(60, RECORDS_FILE, 8), (2_000, "step-00000009.pt", 9)],
    ids=["in the middle of a record", "in the middle of a checkpoint"],
)
def test_a_run_that_fills_the_disk_goes_on_as_if_it_never_had(room: int, file: str, steps: int, tmp_path: Path) -> None:
    straight = zeno.train(RUN, tmp_path / "straight")
    folder = tmp_path / "run"
    disk = ExitStack()

    def fill(record: zeno.Record) -> None:
        if record.step == 7:
            disk.enter_context(files_of_at_most((folder / RECORDS_FILE).stat().st_size + room))

    with disk, pytest.raises(OSError) as error:
        zeno.train(RUN, folder, fill, OFTEN)
    assert file in f"{error.value} {error.value.__context__}", "the model cannot be saved either"
    assert [record.step for record in read(folder)] == list(range(steps))
    assert (folder / RECORDS_FILE).read_bytes().endswith(b"}\n"), "no part of a record is left"
    assert not [path for path in folder.rglob("*") if path.name.startswith(".")], "no temporary file takes space"
    assert [path.stem for path in sorted((folder / CHECKPOINTS).iterdir())] == ["step-00000003", "step-00000006"]

    assert zeno.train(RUN, folder, execution=OFTEN, resume=True) == straight == read(folder)
    models = [safetensors.torch.load_file(tmp_path / name / MODEL_FILE) for name in ("straight", "run")]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
