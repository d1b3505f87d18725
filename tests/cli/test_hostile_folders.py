"""Run folders that anybody may have written: each ends with one line, and none with a traceback or a hang."""

import json
import os
from pathlib import Path

import pytest

from support.commands import run
from support.made_runs import made
from zeno.records.folder import RECORDS_FILE, RUN_FILE, Journal

pytestmark = pytest.mark.timeout(60)

RECORD = json.loads(made(workers=4, steps=1, faulty=(2,))[0].to_json())
SETTINGS = "workers = 4\nsteps = 5\n"
LINES: dict[str, str] = {
    "nested lists": '{"step":0,"lr":' + "[" * 100_000 + "]" * 100_000 + "}",
    "nested objects": '{"errors":' * 100_000 + "0" + "}" * 100_000,
    "not an object": "[]",
    "a number of 5,000 digits": json.dumps(RECORD).replace('"lr": 0.1', '"lr": ' + "1" * 5_000),
    "a worker of 5,000 digits": json.dumps({**RECORD, "errors": {"1" * 5_000: "late"}}),
    "a number beyond float": json.dumps(RECORD).replace('"lr": 0.1', '"lr": ' + "1" * 400),
    "seconds that are text": json.dumps({**RECORD, "seconds": {"rule": "1"}}),
    "no list of faulty workers": json.dumps({**RECORD, "faulty": False}),
    "no list of late workers": json.dumps({**RECORD, "late": {}}),
    "true as a worker": json.dumps({**RECORD, "faulty": [True]}),
    "true as a score": json.dumps({**RECORD, "scores": [True] * 4}),
    "a machine that writes to the terminal": json.dumps({**RECORD, "machines": {"0": "\x1b[2J"}}),
    "a machine of nobody": json.dumps({**RECORD, "machines": {"4": "gpu-07"}}),
    "no phases": json.dumps({**RECORD, "seconds": []}),
    "no learning rate": json.dumps({name: value for name, value in RECORD.items() if name != "lr"}),
}


def folder_with(tmp_path: Path, line: str, settings: str = SETTINGS) -> Path:
    (tmp_path / RUN_FILE).write_text(settings)
    (tmp_path / RECORDS_FILE).write_text(line + "\n")
    return tmp_path


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert len(shown.err) < 1_000
    return shown.err


@pytest.mark.parametrize("command", ["suspects", "report"])
@pytest.mark.parametrize("what", LINES)
def test_records_of_another_form_are_an_error(
    command: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, command, folder_with(tmp_path, LINES[what])) == 2
    assert "records.jsonl is damaged at line 1" in one_line(capsys)


@pytest.mark.parametrize("command", ["suspects", "report"])
@pytest.mark.parametrize("record", [RECORD, {"step": 0, "lr": 0.1, "kept": None, "scores": None, "skipped": "why"}])
def test_more_workers_than_the_records_have_are_an_error(
    command: str, record: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_with(tmp_path, json.dumps(record), "workers = 100000\n")
    assert run(monkeypatch, command, folder) == 2
    assert "run.toml says 100000 workers" in one_line(capsys)
    (folder / RECORDS_FILE).write_text("")
    assert run(monkeypatch, command, folder) == 0, "there are no steps yet"


TEXTS = {
    "nested lists": "a = " + "[" * 4_500 + "]" * 4_500,
    "nested tables": f"{'.'.join('a' * 4_500)} = 1",
    "an integer of 5,000 digits": "steps = " + "1" * 5_000,
    "an integer of 5,000 hexadecimal digits": "steps = 0x" + "f" * 5_000,
    "text without end": f'task = "{"a" * 1_000_000}"',
}


@pytest.mark.parametrize("what", TEXTS)
def test_settings_of_another_form_are_an_error_or_a_note(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_with(tmp_path, json.dumps(RECORD), TEXTS[what])
    for arguments in (["train", "--resume", folder], ["train", folder / RUN_FILE], ["compare", folder / RUN_FILE]):
        assert run(monkeypatch, *arguments) == 2
        assert "is not valid TOML" in one_line(capsys)
    for command in ("suspects", "report"):
        assert run(monkeypatch, command, folder) == 0
        assert "run.toml is damaged: the settings are not known" in capsys.readouterr().err


def test_settings_of_5000_digits_as_text_are_not_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digits = "1" * 5_000
    folder = folder_with(tmp_path, json.dumps(RECORD), f'workers = "{digits}"\nsteps = "{digits}"\n')
    assert run(monkeypatch, "suspects", folder) == 0
    assert run(monkeypatch, "train", "--resume", folder) == 2
    capsys.readouterr()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", [RECORDS_FILE, RUN_FILE])
def test_a_pipe_is_not_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert run(monkeypatch, "train", "--workers", 4, "--steps", 2, "--out", folder) == 0
    capsys.readouterr()
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert run(monkeypatch, "train", "--resume", folder, "--steps", 3) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")
    for command in ("suspects", "report"):
        assert run(monkeypatch, command, folder) == (0 if name == RUN_FILE else 2), "settings are not needed"
        assert name in capsys.readouterr().err
    if name == RUN_FILE:
        assert run(monkeypatch, "watch", folder) == 2
        assert "No run in" in one_line(capsys)


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
def test_temporary_files_do_not_follow_links(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "run"
    victim.write_text("precious")
    folder.mkdir()
    for name in (RECORDS_FILE, RUN_FILE):
        (folder / f".{name}.new").symlink_to(victim)
    with Journal(folder, SETTINGS):
        pass
    assert victim.read_text() == "precious"
    assert sorted(path.name for path in folder.iterdir()) == [RECORDS_FILE, RUN_FILE]
