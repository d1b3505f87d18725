"""The running hash over the lines of a run."""

import hashlib
import json
import logging
from pathlib import Path

import pytest

from support.full_disk import files_of_at_most
from support.made_runs import made
from zeno.records.folder import RECORDS_FILE, Journal, read
from zeno.report.run_view import read_run

RECORDS = made(workers=3, steps=3, faulty=(2,))


def written(folder: Path) -> bytes:
    with Journal(folder, "workers = 3\n") as journal:
        for record in RECORDS:
            journal.append(record)
    return (folder / RECORDS_FILE).read_bytes()


def test_each_line_ends_with_the_hash_of_the_lines_so_far(tmp_path: Path) -> None:
    before = b"start"
    for line, record in zip(written(tmp_path).splitlines(), RECORDS, strict=True):
        content = record.to_json().encode()[:-1]
        before = hashlib.blake2b(before + content, digest_size=16).hexdigest().encode()
        assert line == content + b',"hash":"' + before + b'"}'
        assert json.loads(line)["hash"] == before.decode()


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    content = written(tmp_path)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        (tmp_path / RECORDS_FILE).write_bytes(changed)
        view = read_run(tmp_path)
        assert len(view.records) < 3, place
        assert view.records == RECORDS[: content[:place].count(b"\n")], place
        assert RECORDS_FILE in view.notes[0], place


@pytest.mark.parametrize("bit", [0, *(pytest.param(bit, marks=pytest.mark.slow) for bit in range(1, 8))])
def test_every_flipped_bit_of_a_single_line_is_found(tmp_path: Path, bit: int) -> None:
    content = written(tmp_path).splitlines(keepends=True)[0]
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << bit
        (tmp_path / RECORDS_FILE).write_bytes(changed)
        assert not read(tmp_path), place


def test_lines_that_are_removed_or_moved_are_found(tmp_path: Path) -> None:
    first, second, third = written(tmp_path).splitlines(keepends=True)
    again = third.replace(b'"step":2', b'"step":1')
    for lines, good in [([first, again], 1), ([second], 0), ([first, RECORDS[1].to_json().encode() + b"\n"], 1)]:
        (tmp_path / RECORDS_FILE).write_bytes(b"".join(lines))
        assert read(tmp_path) == RECORDS[:good]


def test_a_resumed_run_continues_the_hashes(tmp_path: Path) -> None:
    content = written(tmp_path)
    with Journal(tmp_path, "", read(tmp_path)[:2]) as journal:
        journal.append(RECORDS[2])
        journal.remove_last()
        journal.append(RECORDS[2])
    assert (tmp_path / RECORDS_FILE).read_bytes() == content


def test_a_record_that_could_not_be_written_is_not_part_of_the_hashes(tmp_path: Path) -> None:
    content = written(tmp_path)
    with Journal(tmp_path, "", RECORDS[:2]) as journal:
        with files_of_at_most(len(content) - 5), pytest.raises(OSError, match=RECORDS_FILE):
            journal.append(RECORDS[2])
        journal.append(RECORDS[2])
    assert (tmp_path / RECORDS_FILE).read_bytes() == content


def test_folders_without_hashes_are_read_and_get_them_when_they_are_resumed(tmp_path: Path) -> None:
    lines = [record.to_json().encode() + b"\n" for record in RECORDS]
    (tmp_path / RECORDS_FILE).write_bytes(b"".join(lines))
    assert read(tmp_path) == RECORDS
    with Journal(tmp_path, "workers = 3\n", read(tmp_path)):
        pass
    assert (tmp_path / RECORDS_FILE).read_bytes() == written(tmp_path / "new")


def test_a_run_that_continues_says_where_its_records_are_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = written(tmp_path)
    (tmp_path / RECORDS_FILE).write_bytes(content.replace(b'"step":1,"lr":0.1', b'"step":1,"lr":0.3'))
    with caplog.at_level(logging.WARNING, "zeno"):
        assert read(tmp_path) == RECORDS[:1]
    assert "records.jsonl is damaged at line 2" in caplog.text
