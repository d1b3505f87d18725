"""Fetches data sets from where they are published, checked against their known checksums."""

from pathlib import Path

import pooch
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from zeno.problem.registry import find

Files = dict[str, str]  # file -> checksum
SOURCES: dict[str, tuple[str, Files]] = {  # name -> (address of the folder, files)
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


def fetch(name: str, folder: Path, base_url: str | None = None) -> None:
    """Downloads a data set into the folder and unpacks it there; what is there already is only checked."""
    address, files = find("data set", name, SOURCES)
    address = base_url.rstrip("/") + "/" if base_url else address
    for file, checksum in files.items():
        unpack = pooch.Untar(extract_dir=".") if file.endswith(".tar.gz") else None
        with _Bar(file) as bar:
            try:
                pooch.retrieve(
                    address + file,
                    checksum,
                    fname=file,
                    path=folder,
                    processor=unpack,
                    downloader=pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16),
                )
            except (ValueError, OSError) as error:
                raise ValueError(f"Could not fetch {address + file}: {error}") from error


class _Bar:
    """A rich progress bar in the form that pooch asks for."""

    def __init__(self, file: str) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._task = self._progress.add_task(file, total=None)

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    @property
    def total(self) -> float | None:
        return self._progress.tasks[0].total

    @total.setter
    def total(self, size: float) -> None:
        self._progress.update(self._task, total=size)

    def update(self, size: int) -> None:
        self._progress.update(self._task, advance=size)

    def reset(self) -> None:
        self._progress.reset(self._task, total=self.total)

    def close(self) -> None:
        """The bar is closed by the `with` around it."""
