"""`zeno train --on-suspect COMMAND`: called once for each new suspect, and never in the way of training."""

from pathlib import Path

import pytest

from support.commands import run

TRAIN = ["train", "--workers", "4", "--faulty", "1", "--fault", "crash", "--batch-size", "5", "--steps"]


def test_a_command_is_run_for_each_new_suspect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called, folder = tmp_path / "called", tmp_path / "run"
    command = f'echo "$ZENO_WORKER is $ZENO_REASON at $ZENO_STEP in $ZENO_RUN" >> {called}'
    assert run(monkeypatch, *TRAIN, "6", "--on-suspect", command, "--out", folder) == 0
    assert called.read_text() == f"0 is failing at 1 in {folder}\n"
    # The suspect of the steps before is not new.
    assert run(monkeypatch, "train", "--resume", folder, "--steps", "9", "--on-suspect", command) == 0
    assert called.read_text().count("\n") == 1


def test_a_command_that_fails_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *TRAIN, "3", "--on-suspect", "exit 7", "--out", tmp_path / "run") == 0
    assert "note: the command of --on-suspect ended with exit code 7" in capfd.readouterr().err


def test_the_command_is_not_written_to_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run folder that somebody else wrote must not make a command run here."""
    folder = tmp_path / "run"
    assert run(monkeypatch, *TRAIN, "3", "--on-suspect", "true", "--out", folder) == 0
    assert "on_suspect" not in (folder / "run.toml").read_text()
    (folder / "run.toml").write_text((folder / "run.toml").read_text() + 'on_suspect = "touch hacked"\n')
    assert run(monkeypatch, "train", "--resume", folder, "--steps", "4") != 0
    assert not Path("hacked").exists()
