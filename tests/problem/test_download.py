"""Downloads, against a server on loopback."""

import functools
import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from problem.test_tasks import write_cifar10, write_mnist
from zeno.problem import download, tasks


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """(folder that is served, its address)."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    folder = tmp_path / "site"
    folder.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def publish(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small archive in the form of the official one, with its checksum as the known one."""
    write_cifar10(folder / "cifar-10-batches-bin")
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
        archive.add(folder / "cifar-10-batches-bin", "cifar-10-batches-bin")
    checksum = hashlib.sha256((folder / "cifar-10-binary.tar.gz").read_bytes()).hexdigest()
    monkeypatch.setitem(download.SOURCES, "cifar10", ("", {"cifar-10-binary.tar.gz": f"sha256:{checksum}"}))


def test_cifar10_is_downloaded_verified_and_unpacked_where_its_task_looks(
    site: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = site
    publish(folder, monkeypatch)
    monkeypatch.setenv("ZENO_DATA", str(tmp_path / "data"))
    download.fetch("cifar10", download.data_folder() / "cifar10", address)
    assert len(tasks.load_task("cifar10").train) == 25
    (folder / "cifar-10-binary.tar.gz").unlink()
    download.fetch("cifar10", download.data_folder() / "cifar10", address)  # what is there is not fetched again


def test_a_file_with_another_checksum_raises_and_is_deleted(
    site: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = site
    publish(folder, monkeypatch)
    archive = folder / "cifar-10-binary.tar.gz"
    archive.write_bytes(archive.read_bytes() + b"!")
    with pytest.raises(ValueError, match=r"Could not download .*cifar-10-binary.tar.gz.*hash"):
        download.fetch("cifar10", tmp_path / "data", address)
    assert not list((tmp_path / "data").iterdir())


def entry(name: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o644, target: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.mode, found.linkname = kind, mode, target
    found.size = 4 if kind == tarfile.REGTYPE else 0
    return found


@pytest.mark.parametrize(
    "bad",
    [
        entry("../outside"),
        entry("inside/../../outside"),
        entry("/tmp/zeno-outside"),
        entry("C:outside"),
        entry("..\\outside"),
        entry("link", tarfile.SYMTYPE, target="../outside"),
        entry("link", tarfile.SYMTYPE, target="good"),
        entry("link", tarfile.LNKTYPE, target="good"),
        entry("pipe", tarfile.FIFOTYPE),
        entry("device", tarfile.CHRTYPE),
        entry("setuid", mode=0o4755),
        entry("sticky", tarfile.DIRTYPE, mode=0o1777),
    ],
    ids=lambda bad: f"{bad.name} {bad.type.decode()} {bad.mode:o} {bad.linkname}",
)
def test_an_archive_with_anything_but_files_and_folders_is_not_unpacked(
    bad: tarfile.TarInfo, site: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = site
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for one in (entry("good"), bad):
            archive.addfile(one, io.BytesIO(b"data"))
    checksum = hashlib.sha256((folder / "cifar-10-binary.tar.gz").read_bytes()).hexdigest()
    monkeypatch.setitem(download.SOURCES, "cifar10", ("", {"cifar-10-binary.tar.gz": f"sha256:{checksum}"}))
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(
        ValueError, match=r"needs plain files and folders at relative paths\. Found .*Nothing was unpacked"
    ):
        download.fetch("cifar10", tmp_path / "data", address)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["cifar-10-binary.tar.gz"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, "data"])


def test_unpacked_files_get_the_usual_permissions(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "archive.tar.gz", "w:gz") as archive:
        archive.addfile(entry("folder/file", mode=0o777), io.BytesIO(b"data"))
    download.unpack(tmp_path / "archive.tar.gz", tmp_path)
    (tmp_path / "usual").write_text("")
    assert (tmp_path / "folder" / "file").read_bytes() == b"data"
    assert (tmp_path / "folder" / "file").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_an_archive_that_is_cut_off_raises_one_clear_error(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "archive.tar.gz", "w:gz") as archive:
        archive.addfile(entry("file"), io.BytesIO(b"data"))
    content = (tmp_path / "archive.tar.gz").read_bytes()
    for part in (content[: len(content) // 2], b"", b"not an archive"):
        (tmp_path / "archive.tar.gz").write_bytes(part)
        with pytest.raises(ValueError, match="is not a complete tar archive"):
            download.unpack(tmp_path / "archive.tar.gz", tmp_path / "to")


def test_a_missing_file_raises_one_clear_error(site: tuple[Path, str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Could not download http://127.0.0.1.*404"):
        download.fetch("mnist", tmp_path / "data", site[1])


def test_mnist_is_downloaded_gzipped(site: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, address = site
    write_mnist(folder, ".gz")
    checksums = {f.name: f"md5:{hashlib.md5(f.read_bytes()).hexdigest()}" for f in folder.glob("*.gz")}
    assert set(checksums) == set(download.SOURCES["mnist"][1])
    monkeypatch.setitem(download.SOURCES, "mnist", ("", checksums))
    download.fetch("mnist", tmp_path / "data", address)
    assert len(tasks.load_task("mnist", tmp_path / "data").test) == 4
