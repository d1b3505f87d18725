"""A run in TensorBoard."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from zeno.records.ledger import Ledger
from zeno.records.record import Record
from zeno.report.tables import ledger_markdown
from zeno.report.worker_map import LEGEND, WorkerMap

TENSORBOARD_FOLDER = "tensorboard"


class TensorBoard(AbstractContextManager["TensorBoard"]):
    """Scalars of every step; at evaluated steps and at the end also the worker map, the suspects and the evidence.

    It is called with every record of a run, and the ledger after it. A run that resumes at `first_step` passes its
    earlier records first: they are written only if the folder has no events yet. Events that the folder holds from
    the first step on that is written are replaced.
    """

    def __init__(self, folder: str | Path, first_step: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(
                "TensorBoard needs tensorboard. Install it: pip install 'zeno-sgd[tensorboard]'"
            ) from error
        self._make_writer = SummaryWriter
        self._writer: Any = None  # made for the first record that is written
        self._folder = Path(folder) / TENSORBOARD_FOLDER
        self._first_step = first_step if any(self._folder.glob("events.*")) else 0
        self._map: WorkerMap | None = None
        self._last: tuple[Record, Ledger] | None = None  # what was written last
        self._num_drawn = 0  # steps on the map when it was written last

    def __call__(self, record: Record, ledger: Ledger) -> None:
        self._map = self._map or WorkerMap(ledger.workers)
        self._map.add(record)
        if record.step < self._first_step:
            return
        if self._writer is None:
            self._writer = self._make_writer(log_dir=str(self._folder), purge_step=record.step, flush_secs=10)
            self._writer.add_text("map", LEGEND, record.step)
        self._last = record, ledger
        for tag, value in _scalars(record):
            self._writer.add_scalar(tag, value, record.step)
        if record.measured:
            self._write_suspects(record.step, ledger)
            if self._map.steps >= 1.01 * self._num_drawn:  # a map takes space, and fewer new steps are not visible
                self._write_map(self._map, record.step)
            self._writer.flush()

    def _write_suspects(self, step: int, ledger: Ledger) -> None:
        self._writer.add_scalar("suspects", len(ledger.suspects), step)
        for row in ledger.rows:
            evidence = min(300.0, math.log10(max(row.evidence, 1e-300)))  # may be 0 or infinite, which is not drawn
            self._writer.add_scalar(f"evidence_log10/{row.name}", evidence, step)
        self._writer.add_text("suspects", ledger_markdown(ledger), step)

    def _write_map(self, worker_map: WorkerMap, step: int) -> None:
        self._writer.add_image("map", worker_map.image(), step, dataformats="HWC")
        self._num_drawn = worker_map.steps

    def __exit__(self, *exception: object) -> None:
        if self._last is None or self._map is None:
            return
        record, ledger = self._last
        if not record.measured:
            self._write_suspects(record.step, ledger)
        if self._num_drawn < self._map.steps:
            self._write_map(self._map, record.step)
        self._writer.close()
        self._writer = self._last = None  # the next record would open it again


def _scalars(record: Record) -> Iterator[tuple[str, float]]:
    if record.lr is not None:
        yield "lr", record.lr
    yield "kept", sum(record.kept or [])
    if record.kept is not None:
        yield "server/own_share", record.own
    if record.evaluated:
        yield "train_loss", math.nan if record.train_loss is None else record.train_loss
    if record.accuracy is not None:
        yield "accuracy", record.accuracy
    for phase, seconds in record.seconds.items():
        yield f"seconds/{phase}", seconds
    for state, number in record.workers.items():
        yield f"workers/{state}", number
