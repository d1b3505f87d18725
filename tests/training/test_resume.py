"""A run whose process ends, in whatever way, goes on and ends with the records of one that was never stopped."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import zeno
from support import commands
from zeno.records.folder import CHECKPOINTS, MODEL_FILE, RECORDS_FILE, read
from zeno.server.engine import Engine
from zeno.server.scorers import ThreadScorer
from zeno.training import checkpoint

SMALL = zeno.Run(workers=5, batch_size=20, steps=14, eval_every=5, rule=zeno.Zeno(trim=2), faulty=2)
OFTEN = zeno.ExecutionSettings(checkpoint_every=3)


class Crash(Exception):  # noqa: N818
    pass


def crash_in(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Once, in the middle of a step: the parameters are new, and nothing has been written down yet."""
    step = Engine.step

    def crashing(self: Engine, number: int, skip: Collection[int] = ()) -> Any:
        outcome = step(self, number, skip)
        if number == at:
            monkeypatch.setattr(Engine, "step", step)
            raise Crash
        return outcome

    monkeypatch.setattr(Engine, "step", crashing)


@pytest.mark.parametrize(
    "run",
    [
        SMALL,
        replace(SMALL, optimizer="sgd(momentum=0.9)", schedule="steplr(step_size=4)", redraw=True),
        replace(SMALL, optimizer="adam", lr=0.01, schedule="cosineannealinglr(T_max=14)", fault=zeno.Gaussian()),
        replace(SMALL, optimizer="adamw(amsgrad=True)", lr=0.01, schedule="onecyclelr(max_lr=0.02, total_steps=14)"),
        replace(SMALL, model="small_cnn", eval_samples=100),
        replace(SMALL, rule=zeno.CenteredClipping(radius=1.0)),
        replace(SMALL, rule=zeno.chain(zeno.Bucketing(size=2), zeno.CenteredClipping(radius=1.0)), steps=9),
        replace(SMALL, fault=zeno.Replay() + zeno.Slow(steps=3), rule=zeno.Mean(), steps=9),
        replace(SMALL, fault=zeno.Omniscient(chance=0.7) + zeno.ALIE(start=5, redraw=True), steps=9),
        replace(SMALL, fault=zeno.CancellingOffsets() + zeno.Turncoat(start=4), steps=9),
    ],
    ids=[
        "plain",
        "momentum",
        "adam",
        "one cycle",
        "batch norm",
        "a rule that remembers",
        "a chain that remembers",
        "faults that remember",
        "faults that know the rule, by chance",
        "faults that know the rule and remember",
    ],
)
def test_a_run_that_crashes_goes_on_as_if_it_never_had(
    run: zeno.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = zeno.train(run, tmp_path / "straight")
    crash_in(monkeypatch, at=7)
    with pytest.raises(Crash):
        zeno.train(run, tmp_path / "run", execution=OFTEN)
    assert len(read(tmp_path / "run")) == 7
    new: list[int] = []
    resumed = zeno.train(run, tmp_path / "run", lambda r: new.append(r.step), OFTEN, resume=True)
    assert new == list(range(6, run.steps)), "from the checkpoint of step 6 on"
    assert resumed == straight == read(tmp_path / "run")
    models = [safetensors.torch.load_file(tmp_path / name / MODEL_FILE) for name in ("straight", "run")]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_an_interrupted_run_goes_on_from_the_step_where_it_was(tmp_path: Path) -> None:
    def stop(record: zeno.Record) -> None:
        if record.step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        zeno.train(SMALL, tmp_path, stop)
    new: list[int] = []
    resumed = zeno.train(SMALL, tmp_path, lambda r: new.append(r.step), resume=True)
    assert new == list(range(5, 14))
    assert resumed == zeno.train(SMALL)


def test_checkpoints_are_written_every_so_often_and_the_newest_stay(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def look(record: zeno.Record) -> None:
        seen.append(sorted(f.stem for f in (tmp_path / CHECKPOINTS).glob("*.pt")))

    zeno.train(SMALL, tmp_path, look, zeno.ExecutionSettings(checkpoint_every=4, checkpoints=2))
    assert [len(names) for names in seen] == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2]
    assert seen[-1] == ["step-00000008", "step-00000012"]
    assert sorted(f.stem for f in (tmp_path / CHECKPOINTS).glob("*.pt")) == ["step-00000012", "step-00000014"]


def crashed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crash_in(monkeypatch, at=10)
    with pytest.raises(Crash):
        zeno.train(SMALL, folder, execution=OFTEN)
    assert sorted(f.stem for f in (folder / CHECKPOINTS).glob("*.pt")) == ["step-00000006", "step-00000009"]


def test_a_checkpoint_from_before_clusters_had_a_state_is_still_one(tmp_path: Path) -> None:
    records = zeno.train(replace(SMALL, steps=5), tmp_path)
    step, state = checkpoint.newest(tmp_path / CHECKPOINTS) or (0, {})
    assert state.pop("cluster") is not None
    checkpoint.save(tmp_path / CHECKPOINTS, step, state)
    assert zeno.train(SMALL, tmp_path, resume=True)[:5] == records[:5]
    assert read(tmp_path)[5:] == zeno.train(SMALL)[5:]


@pytest.mark.parametrize("how", ["torn", "corrupt"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    crashed(tmp_path, monkeypatch)
    file = tmp_path / CHECKPOINTS / "step-00000009.pt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content if how == "corrupt" else content[: len(content) // 2])
    new: list[int] = []
    with caplog.at_level(logging.WARNING, "zeno"):
        resumed = zeno.train(SMALL, tmp_path, lambda r: new.append(r.step), resume=True)
    assert "The checkpoint of step 9" in caplog.text
    assert "is skipped" in caplog.text
    assert new[0] == 6
    assert resumed == zeno.train(SMALL)


def test_damaged_records_are_worked_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crashed(tmp_path, monkeypatch)
    lines = (tmp_path / RECORDS_FILE).read_bytes().splitlines(keepends=True)
    (tmp_path / RECORDS_FILE).write_bytes(b"".join(lines[:7]) + b"\xff" + lines[7][:20])
    assert zeno.train(SMALL, tmp_path, resume=True) == zeno.train(SMALL)
    assert read(tmp_path) == zeno.train(SMALL)


def test_without_a_checkpoint_the_run_starts_from_the_beginning_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    crash_in(monkeypatch, at=2)
    with pytest.raises(Crash):
        zeno.train(SMALL, tmp_path, execution=OFTEN)
    assert zeno.train(SMALL, tmp_path, resume=True) == zeno.train(SMALL)
    assert "no checkpoint" in caplog.text


def test_a_finished_run_stays_as_it_is_and_can_be_made_longer(tmp_path: Path) -> None:
    records = zeno.train(SMALL, tmp_path)
    new: list[int] = []
    assert zeno.train(SMALL, tmp_path, lambda r: new.append(r.step), resume=True) == records
    assert new == []
    longer = zeno.train(replace(SMALL, steps=20), tmp_path, resume=True)
    assert longer[:14] == records
    assert longer[14:] == zeno.train(replace(SMALL, steps=20))[14:]
    assert "steps = 20" in (tmp_path / "run.toml").read_text()


def test_a_run_with_objects_of_the_users_own_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def own() -> zeno.Run:
        digits = zeno.load_task("digits")
        return replace(SMALL, task=zeno.Task(digits.train, digits.test, digits.model), rule=Own())

    crash_in(monkeypatch, at=7)
    with pytest.raises(Crash):
        zeno.train(own(), tmp_path, execution=OFTEN)
    assert zeno.train(own(), tmp_path, resume=True) == zeno.train(own())


class Own(zeno.Rule):
    """A user's rule."""

    def __call__(self, candidates: Tensor, oracle: zeno.Oracle | None = None, state: object = None) -> zeno.Aggregate:
        return zeno.Mean()(candidates)


def test_another_run_is_not_taken_for_the_one_in_the_folder(tmp_path: Path) -> None:
    zeno.train(SMALL, tmp_path)
    with pytest.raises(ValueError, match=r"has other settings: lr = 0\.1 there, lr = 0\.2 here"):
        zeno.train(replace(SMALL, lr=0.2), tmp_path, resume=True)
    with pytest.raises(ValueError, match="no schedule there, schedule = "):
        zeno.train(replace(SMALL, schedule="steplr(step_size=4)"), tmp_path, resume=True)
    with pytest.raises(ValueError, match="There is no run to resume in"):
        zeno.train(SMALL, tmp_path / "nowhere", resume=True)
    with pytest.raises(ValueError, match=r"holds a run already\. Name another one, or resume it"):
        zeno.train(SMALL, tmp_path)


# Real processes


def start(folder: Path, *flags: str) -> "subprocess.Popen[str]":
    command = [
        sys.executable,
        "-c",
        "import torch; torch.set_num_threads(1); from zeno.cli.app import main; main()",
        "train",
    ]
    settings = [
        "--workers",
        "5",
        "--faulty",
        "2",
        "--rule",
        "zeno",
        "--trim",
        "2",
        "--model",
        "small_cnn",
        "--eval-samples",
        "50",
    ]
    settings += flags or ["--steps", "60", "--checkpoint-every", "7", "--out", str(folder)]
    return subprocess.Popen([*command, *settings], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def stop_after(process: "subprocess.Popen[str]", folder: Path, records: int, number: int) -> str:
    until = time.monotonic() + 120
    while not (folder / RECORDS_FILE).exists() or (folder / RECORDS_FILE).read_text().count("\n") < records:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)
    os.kill(process.pid, number)
    return process.communicate(timeout=60)[1]


def test_a_process_that_is_killed_terminated_and_interrupted_ends_with_the_records_of_one_that_was_not(
    tmp_path: Path,
) -> None:
    straight = start(tmp_path / "straight")
    process = start(tmp_path / "run")
    stop_after(process, tmp_path / "run", 10, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL

    process = start(tmp_path / "run", "--resume", str(tmp_path / "run"))
    errors = stop_after(process, tmp_path / "run", 20, signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert f"to continue: zeno train --resume {tmp_path / 'run'}" in errors
    done = len(read(tmp_path / "run"))
    assert f"step-{done:08d}.pt" in {f.name for f in (tmp_path / "run" / CHECKPOINTS).iterdir()}, "not a step is lost"

    process = start(tmp_path / "run", "--resume", str(tmp_path / "run"))
    errors = stop_after(process, tmp_path / "run", done + 5, signal.SIGINT)
    assert process.returncode == 130, errors
    assert "stopping after this step" in errors

    last = start(tmp_path / "run", "--resume", str(tmp_path / "run"))
    shown, errors = last.communicate(timeout=120)
    assert last.returncode == 0, errors
    assert "zeno(trim=2)" in shown
    assert straight.communicate(timeout=120) is not None
    assert len(read(tmp_path / "run")) == 60
    assert read(tmp_path / "run") == read(tmp_path / "straight")


def test_a_second_signal_stops_at_once() -> None:
    code = (
        "import time\n"
        "from zeno.training.interrupt import Interrupt\n"
        "with Interrupt() as stop:\n"
        "    print('ready', flush=True)\n"
        "    while stop.asked is None: time.sleep(.01)\n"
        "    print('asked', flush=True)\n"
        "    time.sleep(100)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGTERM)
    assert process.stdout.readline() == "asked\n"
    os.kill(process.pid, signal.SIGINT)
    assert "Interrupted: stopped by SIGINT" in process.communicate(timeout=10)[1]


def test_the_model_is_saved_when_no_candidate_is_tried_on_it_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error ends the step while the thread that scores on arrival still writes to the model."""
    events: list[str] = []

    class Failing(zeno.LocalCluster):
        remote = True

        def gradients(self, *args: Any, **keywords: Any) -> Any:
            yield from super().gradients(*args, **keywords)
            raise Crash

    def slowly(self: ThreadScorer) -> None:
        time.sleep(0.5)
        events.append("tried")

    def save(*args: Any) -> None:
        events.append("saved")

    monkeypatch.setattr(ThreadScorer, "_score_arrived", slowly)
    monkeypatch.setattr("zeno.training.build.LocalCluster", Failing)
    monkeypatch.setattr("zeno.training.loop._save_model", save)
    with pytest.raises(Crash):
        zeno.train(replace(SMALL, faulty=0), tmp_path)
    assert events == ["tried", "saved"]


def test_a_run_is_not_resumed_with_fewer_steps_than_it_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    zeno.train(replace(SMALL, steps=6), tmp_path / "run")
    before = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir() if file.is_file()}
    assert commands.run(monkeypatch, "train", "--resume", tmp_path / "run", "--steps", 3) == 2
    assert "has made 6 steps, and cannot be resumed with fewer. Found steps=3." in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir() if file.is_file()} == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--resume", "nowhere"], "There is no run to resume in nowhere"),
        (["run.toml", "--resume", "nowhere"], "Leave out other settings"),
        (["--resume", "own"], "has a custom task. Resume it in Python"),
        (["--deadline", "3"], "Only a Ray cluster has deadline. Found cluster='local'"),
        (["--cluster", "cloud"], "The setting cluster must be one of local, ray. Found cluster='cloud'"),
        (["--cluster", "ray", "--patience", "0"], "The setting patience must be at least 1"),
        (["--cluster", "ray", "--deadline", "0"], "The setting deadline must be above 0"),
        (["--checkpoint-every", "0"], "The setting checkpoint_every must be at least 1"),
    ],
)
def test_a_mistake_ends_with_a_line_that_says_what_to_do(
    flags: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    from zeno.cli.app import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "run.toml").write_text('task = "Task(train=...)"\n')
    monkeypatch.setattr(sys, "argv", ["zeno", "train", *flags])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
