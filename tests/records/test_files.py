"""Atomic writes and folder locks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zeno.records.files import is_locked, locked, write_atomically


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(("content", "written"), [("ä\n", b"\xc3\xa4\n"), (b"\x00\r\n", b"\x00\r\n")])
def test_text_and_bytes_are_written_as_they_are(
    tmp_path: Path, content: str | bytes, written: bytes, sync: bool
) -> None:
    for _ in range(2):
        write_atomically(tmp_path / "file", content, sync)
        assert (tmp_path / "file").read_bytes() == written
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "file", "old")

    def fail(*paths: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="the disk is full"):
        write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"


def test_synced_files_are_on_the_disk_before_they_get_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, rename = os.fsync, os.replace

    def noted_sync(handle: int) -> None:
        done.append("sync")
        sync(handle)

    def noted_rename(old: Path, new: Path) -> None:
        done.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted_rename)
    write_atomically(tmp_path / "file", "text", sync=True)
    assert done == ["sync", "rename", "sync"], "the content, the name, the folder"


def test_a_folder_is_locked_by_one_at_a_time(tmp_path: Path) -> None:
    assert is_locked(tmp_path) is False
    with locked(tmp_path):
        assert is_locked(tmp_path) is True
        with (
            pytest.raises(ValueError, match=r"Another process is writing to .*choose another folder"),
            locked(tmp_path),
        ):
            pass
    assert is_locked(tmp_path) is False


def test_without_fcntl_as_on_windows_folders_are_not_locked(tmp_path: Path) -> None:
    code = f"""
import sys, zeno.records.record
from pathlib import Path
sys.platform, sys.modules["fcntl"] = "win32", None
from zeno.records.files import is_locked, locked, write_atomically
from zeno.records.folder import Journal, being_written
folder = Path({str(tmp_path)!r})
with locked(folder), locked(folder):
    assert is_locked(folder) is None
assert not being_written(folder)
with Journal(folder, ""):
    assert being_written(folder)
write_atomically(folder / "file", "text", sync=True)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
