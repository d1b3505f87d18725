"""Runs with everything that a page can show, without training."""

import functools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zeno.records.folder import RECORDS_FILE, RUN_FILE
from zeno.records.record import Record
from zeno.report.page.html import page
from zeno.report.page.live import Live, opened
from zeno.report.page.pack import bin_of, pack, packed_run
from zeno.report.run_view import RunView
from zeno.workers.reply import ErrorKind, ReplyError

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028&amp;'\""
FAULTY_ONES = (2, 5, 7)


def made(workers: int = 12, steps: int = 80, faulty: Sequence[int] = FAULTY_ONES, seed: int = 0) -> list[Record]:
    """A run with a warm-up, a skipped step, errors and a quarantine."""
    draw = np.random.default_rng(seed)
    return [_made(step, draw.normal(1.0, 0.2, workers), workers, faulty) for step in range(steps)]


def _made(step: int, values: "np.ndarray[Any, np.dtype[np.float64]]", workers: int, faulty: Sequence[int]) -> Record:
    values[list(faulty)] -= 3
    errors = {9: ReplyError(ErrorKind.RAISED, "raised ValueError: no")} if step == 42 else {}
    quarantined = [1] if 50 <= step < 60 else []
    out = [*errors, *quarantined]
    kept = [bool(value > 0) and worker not in out for worker, value in enumerate(values)]
    is_skipped = step == 30
    return Record(
        step=step,
        lr=0.1,
        kept=None if is_skipped else [False] * workers if step < 5 else kept,
        scores=[None if worker in out else float(value) for worker, value in enumerate(values)],
        errors=errors,
        quarantined=quarantined,
        late=[4] if step == 20 else [],
        skipped="nobody answered" if is_skipped else None,
        faulty=list(faulty),
        evaluated=step % 10 == 9,
        accuracy=step / 100 if step % 10 == 9 else None,
        train_loss=2 / (1 + step) if step % 10 == 9 and step != 59 else None,
        seconds={"gradients": 0.1, "rule": 0.01 * (1 + step % 3)},
        workers={"alive": workers - (step == 20), "late": int(step == 20), "lost": 0},
    )


def weighted(own: float = 0.25) -> list[Record]:
    """The same run with unequal weights: worker 0 has the largest one, 11 a tenth of it, and 4 is subtracted."""
    shares = np.linspace(0.2, 0.02, 12)
    shares[4] = -0.1
    return [
        record if record.kept is None else replace(record, weights=(shares * record.kept).tolist(), own=own)
        for record in made()
    ]


HOSTILE_NAME = '<img src=x onerror=alert(1)> [red]$x$|"{{DATA}}</script>'
NAMES = ["gpu-00", "gpu-01", HOSTILE_NAME, *(f"gpu-{i:02}" for i in range(3, 11)), "a-name-of-" + 90 * "x"]
JOINED = 25  # the step at which the last two join


def named() -> list[Record]:
    """The same run of workers with names, the last two of which join later; nobody knows who was made faulty."""
    return [replace(_first(r, 10 if r.step < JOINED else 12), faulty=None, joined=_joined(r.step)) for r in made()]


def _joined(step: int) -> list[str]:
    return {0: NAMES[:10], JOINED: NAMES[10:]}.get(step, [])


def _first(record: Record, workers: int) -> Record:
    kept = None if record.kept is None else record.kept[:workers]
    return replace(record, kept=kept, scores=(record.scores or [])[:workers])


def write(folder: Path, records: Sequence[Record], **settings: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    workers = {} if records and records[0].joined else {"workers": len(records[0].scores or ()) if records else 12}
    settings = {**workers, "steps": 80, "rule": "zeno", **settings}
    (folder / RUN_FILE).write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
    (folder / RECORDS_FILE).write_text("".join(record.to_json() + "\n" for record in records))
    return folder


def run_of(records: Sequence[Record], name: str = "run", **settings: str) -> RunView:
    return RunView(name, {"rule": "zeno", **settings}, list(records), len(records[0].scores or ()), len(records))


@functools.cache
def big_page() -> str:
    """200 workers, 10,000 steps."""
    draw = np.random.default_rng(0)
    scores = draw.normal(0.0, 1.0, (10_000, 200)) - 4 * (np.arange(200) % 10 == 0)
    kept = scores > -1
    weights = kept * draw.uniform(0.5, 1.0, kept.shape) / 180
    records = [
        Record(step, 0.1, *arrays, own=0.1, seconds={"rule": 0.1}, workers={"alive": 200})
        for step, arrays in enumerate(zip(kept.tolist(), scores.tolist(), weights.tolist(), strict=True))
    ]
    first = packed_run(run_of(records[:100], "big"), 1)  # the ledger of all steps takes long, and has the same size
    steps = pack(records, 200, bin_of(10_000, 200))
    return page([{**first, **steps, "planned": 10_000, "steps": 10_000}])


def append(folder: Path, records: Sequence[Record]) -> None:
    with (folder / RECORDS_FILE).open("a") as file:
        file.write("".join(record.to_json() + "\n" for record in records))


@contextmanager
def watched(folders: Sequence[Path], every: float = 1.0) -> Iterator[tuple[str, Live]]:
    """The live view of folders that seem to be written all the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zeno.report.page.live.being_written", lambda folder: True)
        with opened(folders, every=every) as found:
            yield found
