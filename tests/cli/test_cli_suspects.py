"""The commands that show runs: suspects, report, watch."""

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import zeno
from support.commands import run
from zeno.records.files import locked
from zeno.records.folder import RECORDS_FILE, being_written, read

FAULTY = zeno.Run(
    rule=zeno.Zeno(trim=3, batch_size=32), workers=6, batch_size=32, fault=zeno.SignFlip(), faulty=2, steps=80
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two faulty workers."""
    where = tmp_path_factory.mktemp("runs") / "faulty"
    zeno.train(FAULTY, where)
    return where


def test_suspects_are_printed_with_their_evidence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert run(monkeypatch, "suspects", folder) == 0
    shown = capsys.readouterr().out
    assert "2 of 6 workers are suspect: 0 and 1." in shown
    lines = [line.split() for line in shown.splitlines() if re.match(r"\s*\d", line)]
    assert [line[:2] for line in lines[:2]] in (
        [["0", "suspect"], ["1", "suspect"]],
        [["1", "suspect"], ["0", "suspect"]],
    )
    assert sorted(int(line[0]) for line in lines[:6]) == list(range(6))


def test_who_is_not_in_an_update_of_an_asynchronous_run_did_not_arrive(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    zeno.train(zeno.Run(workers=2, steps=4, batch_size=8, asynchronous=True, rule="mean"), tmp_path / "out")
    assert run(monkeypatch, "suspects", tmp_path / "out") == 0
    shown = capsys.readouterr().out
    assert shown.count("2 did not arrive") == 2
    assert "not asked" not in shown


def test_the_exit_code_reports_suspects(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
) -> None:
    zeno.train(zeno.Run(workers=6, steps=20, rule=zeno.Zeno(trim=2)), tmp_path / "good")
    assert run(monkeypatch, "suspects", folder, "--fail-on-suspect") == 3
    assert run(monkeypatch, "suspects", tmp_path / "good", "--fail-on-suspect") == 0
    assert run(monkeypatch, "suspects", tmp_path / "good", folder, "--fail-on-suspect") == 3
    capsys.readouterr()


def test_suspects_as_json_are_those_of_the_ledger(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert run(monkeypatch, "suspects", folder, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    ledger = zeno.ledger_of(read(folder), 6)
    assert (found["suspects"], found["steps"], found["error_rate"]) == ([0, 1], 80, 0.01)
    assert found["settings"]["rule"] == "zeno(trim=3, batch_size=32)"
    assert found["says"] == str(ledger)
    assert [row["evidence"] for row in found["workers"]] == [row.evidence for row in ledger.rows]


def test_a_folder_without_a_run_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for command in ("suspects", "report"):
        assert run(monkeypatch, command, tmp_path) == 2
        assert RECORDS_FILE in capsys.readouterr().err
    for command in ("suspects", "report"):
        assert run(monkeypatch, command, tmp_path / "nowhere") == 2
        assert "nowhere" in capsys.readouterr().err


def test_damaged_and_missing_records_are_noted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged[red]"
    damaged.mkdir()
    lines = (folder / RECORDS_FILE).read_text().splitlines(keepends=True)
    (damaged / RECORDS_FILE).write_text("".join([*lines[:20], "garbage\n", *lines[21:]]))
    assert run(monkeypatch, "suspects", damaged, folder) == 0
    shown = capsys.readouterr()
    assert "damaged at line 21" in shown.err
    assert "damaged[red], 20 steps" in shown.out.replace("\n", "")
    assert run(monkeypatch, "suspects", damaged, "--json") == 0
    assert any("damaged at line 21" in note for note in json.loads(capsys.readouterr().out)[0]["notes"])
    (damaged / RECORDS_FILE).write_text("")
    assert run(monkeypatch, "suspects", damaged) == 0
    assert "There is no step yet." in capsys.readouterr().out


def test_a_finished_run_cannot_be_watched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert run(monkeypatch, "watch", folder) == 2
    assert f"zeno report {folder}" in capsys.readouterr().err


def test_report_writes_a_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert run(monkeypatch, "report", folder) == 0
    assert f"the report is in {folder / 'report.html'}" in capsys.readouterr().out.replace("\n", "")
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert run(monkeypatch, "report", folder, "--out", folder / "other.html") == 0
    assert (folder / "other.html").exists()


def test_a_report_needs_a_folder_that_exists(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
) -> None:
    assert run(monkeypatch, "report", folder, "--out", tmp_path / "missing" / "x.html") == 2
    assert f"error: There is no folder {tmp_path / 'missing'} for the report. Create it" in capsys.readouterr().err


def test_train_leaves_a_page_and_a_picture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, "train", "--workers", 5, "--steps", 3, "--out", tmp_path / "out") == 0
    assert "No worker is suspect." in capsys.readouterr().out
    assert (tmp_path / "out" / "workers.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "report.html").exists()


def zeno_process(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "zeno", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_watch_serves_a_run_in_training_and_ends_with_it(tmp_path: Path) -> None:
    """Two processes: one trains, the other shows it on loopback, and ends by itself."""
    out = tmp_path / "run"
    training = zeno_process("train", "--workers", 4, "--trim", 1, "--rule", "zeno", "--steps", 100000, "--out", out)
    watching = None
    try:
        wait_for(lambda: (out / RECORDS_FILE).exists() and len(read(out)) > 3)
        assert being_written(out)
        watching = zeno_process("watch", out)
        assert watching.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:(\d+)/", watching.stdout.readline())
        assert address is not None
        page = get(address[0])
        assert "zeno" in page.lower()
        assert not open_elsewhere(int(address[1])), "it listens on loopback only"
        training.send_signal(signal.SIGINT)
        assert training.wait(60) == 130
        assert not being_written(out)
        assert watching.wait(30) == 0, "it ends with the run"
        assert f"zeno report {out}" in watching.stdout.read()
    finally:
        for process in filter(None, (training, watching)):
            process.kill()
            process.communicate()


def test_watch_waits_for_a_run_to_begin(tmp_path: Path) -> None:
    out = tmp_path / "run"
    watching = zeno_process("watch", out)
    try:
        assert watching.stdout is not None
        assert watching.stdout.readline() == f"waiting for a run to begin in {out} (Ctrl-C ends it)\n"
        out.mkdir()
        with locked(out):
            (out / RECORDS_FILE).write_text("")
            assert watching.stdout.readline().startswith("watching at http://127.0.0.1:")
        assert watching.wait(30) == 0, "it ends with the run"
    finally:
        watching.kill()
        watching.communicate()


def test_a_file_cannot_be_watched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    assert run(monkeypatch, "watch", tmp_path / "file") == 2
    assert "Found the file" in capsys.readouterr().err


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=20) as reply:
        return str(reply.read().decode())


def open_elsewhere(port: int) -> bool:
    """Whether another loopback address, which a server on all addresses would have too, answers."""
    with socket.socket() as other:
        other.settimeout(2)
        return other.connect_ex(("127.0.0.2", port)) == 0


def wait_for(holds: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)


def test_checking_whether_a_run_is_in_training_does_not_stop_it_from_starting(tmp_path: Path) -> None:
    """The check takes the lock for a moment."""
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)
    threading.Timer(0.3, os.close, [handle]).start()
    with locked(tmp_path):
        assert being_written(tmp_path)
    assert not being_written(tmp_path)


def test_two_processes_do_not_write_to_one_run(tmp_path: Path, folder: Path) -> None:
    with locked(folder), pytest.raises(ValueError, match="Another process is writing to"):
        zeno.train(FAULTY, folder, resume=True)
