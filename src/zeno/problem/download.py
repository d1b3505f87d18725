"""Downloads data sets from their official sources and verifies their checksums."""

import os
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

from zeno.problem.registry import find

SOURCES: dict[str, tuple[str, dict[str, str]]] = {  # name -> (address of the folder, {file: checksum})
    "cifar10": (
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-binary.tar.gz": "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
    ),
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
}


def data_folder() -> Path:
    """Where `zeno data` puts data sets and tasks look for them: ZENO_DATA, or the user's cache folder."""
    import pooch  # here: it would slow down `zeno --help`

    return Path(os.environ.get("ZENO_DATA") or pooch.os_cache("zeno"))


def fetch(name: str, folder: Path, base_url: str | None = None) -> None:
    """Downloads a data set into the folder and unpacks it there. Files that are there already are only verified."""
    import pooch

    address, files = find("data set", name, SOURCES)
    address = base_url.rstrip("/") + "/" if base_url else address
    with Progress(*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn()) as progress:
        for file, checksum in files.items():
            downloader = pooch.HTTPDownloader(progressbar=_Bar(progress, file), chunk_size=1 << 16)
            try:
                path = Path(pooch.retrieve(address + file, checksum, file, folder, downloader=downloader))
            except (ValueError, OSError) as error:
                raise ValueError(
                    f"Could not download {address + file}: {error}. Try again, name a mirror with --url, or put the "
                    f"file into {folder} yourself."
                ) from error
            if file.endswith(".tar.gz"):
                unpack(path, folder)


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks a tar archive of files and folders, unless they are there already.

    Raises ValueError before anything is written if it holds something else. Files get the usual permissions and owner.
    """
    try:
        with tarfile.open(archive) as content:
            members = content.getmembers()
            for member in members:
                _check(member, archive)
            for member in members:
                path = folder / member.name
                (path if member.isdir() else path.parent).mkdir(parents=True, exist_ok=True)
                source = content.extractfile(member)  # None for a folder
                if source is not None and not (path.is_file() and path.stat().st_size == member.size):
                    with source, path.open("wb") as file:
                        shutil.copyfileobj(source, file)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ValueError(f"{archive} is not a complete tar archive: {error}") from error


def _check(member: tarfile.TarInfo, archive: Path) -> None:
    """Raises ValueError unless this is a file or a folder inside the folder that is unpacked to."""
    path = PurePosixPath(member.name)
    is_inside = not path.is_absolute() and ".." not in path.parts and not set(member.name) & set("\\:")
    if not (is_inside and (member.isreg() or member.isdir()) and member.mode & ~0o777 == 0):
        raise ValueError(
            f"An archive of data needs plain files and folders at relative paths. Found {member.name!r} of type "
            f"{member.type!r} and mode {member.mode:o} in {archive}. Nothing was unpacked; delete the archive."
        )


class _Bar:
    """The progress of one file, with the attributes and methods that pooch uses."""

    total: int | None = None

    def __init__(self, progress: Progress, file: str) -> None:
        self._progress, self._task = progress, progress.add_task(file, total=None)

    def update(self, size: int) -> None:
        self._progress.update(self._task, total=self.total, advance=size)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None: ...  # `fetch` closes the display
