"""A replay: the records of an asynchronous run made again, from its settings and the order of its arrivals."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import zeno
from zeno.cli.app import app
from zeno.records.folder import read

RUN = zeno.Run(
    workers=6,
    steps=25,
    batch_size=20,
    eval_every=5,
    asynchronous=True,
    buffer=2,
    rule="zeno_auto",
    delay="lognormal(1)",
    fault="alie(on=2)+crash(on=1, chance=0.5)",
    faulty=3,
    worker_momentum=0.5,
)


def replay_of(folder: Path) -> zeno.ExecutionSettings:
    return zeno.ExecutionSettings(replay=str(folder))


@pytest.mark.parametrize(
    "changed", [{}, {"quarantine": True}, {"max_staleness": 2}, {"model": "small_cnn", "steps": 8}]
)
def test_a_replay_gives_the_same_records(tmp_path: Path, changed: dict[str, object]) -> None:
    run = replace(RUN, **changed)  # type: ignore[arg-type]
    records = zeno.train(run, tmp_path)
    assert zeno.train(run, execution=replay_of(tmp_path)) == records


def test_a_replay_follows_the_record_and_not_the_delays(tmp_path: Path) -> None:
    records = zeno.train(RUN, tmp_path)
    other = replace(RUN, delay="constant")
    assert zeno.train(other) != records
    assert zeno.train(other, execution=replay_of(tmp_path)) == records


def test_a_replay_of_a_resumed_run_gives_the_same_records(tmp_path: Path) -> None:
    zeno.train(replace(RUN, steps=10), tmp_path)
    records = zeno.train(RUN, tmp_path, resume=True)
    assert zeno.train(RUN, execution=replay_of(tmp_path)) == records


def test_the_command_takes_the_settings_from_the_folder(tmp_path: Path) -> None:
    run, again = tmp_path / "run", tmp_path / "again"
    records = zeno.train(RUN, run)
    result = CliRunner().invoke(app, ["train", "--replay", str(run), "--out", str(again)])
    assert result.exit_code == 0, result.output
    assert read(again) == records
    shorter = CliRunner().invoke(app, ["train", "--replay", str(run), "--steps", "5", "--out", str(tmp_path / "short")])
    assert shorter.exit_code == 0, shorter.output
    assert read(tmp_path / "short") == records[:5]
    for arguments, message in (
        (["--replay", str(run), "--lr", "0.5"], "A replay has the settings of its run, in its folder. Found lr."),
        (["--replay", str(tmp_path / "none")], "There is no run in"),
    ):
        failed = CliRunner().invoke(app, ["train", *arguments, "--out", str(tmp_path / "failed")])
        assert failed.exit_code != 0
        assert message in " ".join(str(failed.exception or failed.output).split()) + failed.output


def test_a_replay_with_other_settings_says_so_where_it_cannot_go_on(tmp_path: Path) -> None:
    run = replace(RUN, steps=60, fault="crash", faulty=2)
    zeno.train(run, tmp_path)
    with pytest.raises(
        ValueError, match=r"A replay needs the settings of its run. Found that worker \d, which replied"
    ):
        zeno.train(replace(run, quarantine=True), execution=replay_of(tmp_path))


def test_what_cannot_be_replayed_is_an_error(tmp_path: Path) -> None:
    synchronous = zeno.Run(workers=3, steps=2, batch_size=5, rule="mean")
    zeno.train(synchronous, tmp_path / "synchronous")
    zeno.train(RUN, tmp_path / "run")
    with pytest.raises(ValueError, match=r"Found 2 records in .*, not all of them with arrivals"):
        zeno.train(replace(RUN, steps=2), execution=replay_of(tmp_path / "synchronous"))
    with pytest.raises(ValueError, match=r"A replay of 26 steps needs the records of as many asynchronous ones"):
        zeno.train(replace(RUN, steps=26), execution=replay_of(tmp_path / "run"))
    with pytest.raises(ValueError, match=r"asynchronous=False"):
        zeno.train(synchronous, execution=replay_of(tmp_path / "run"))
    with pytest.raises(ValueError, match="A replay begins with the first step"):
        zeno.train(RUN, tmp_path / "run", execution=replay_of(tmp_path / "run"), resume=True)
    with pytest.raises(ValueError, match="A replay runs in one process"):
        zeno.ExecutionSettings(cluster="ray", replay="runs/one")
