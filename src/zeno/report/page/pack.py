"""Records -> the arrays that the page draws, as JSON: each one gzip-ed and in base64, little-endian.

Cells are [columns, m]. A column is one step, or a bin of `bin` steps where a run has more cells than a page should
hold.
"""

import base64
import gzip
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from zeno.records.folder import Record, summarize
from zeno.records.ledger import Ledger, in_words

CELLS = 2_500_000  # of all runs of a page together
TEXTS = 2_000  # different ones of a run; beyond these the part before the colon stands for a text
LENGTH = 300  # of a text

KEPT, DROPPED, ERROR, UNJUDGED, NOT_ASKED, FAULTY, LATE = (1 << bit for bit in range(7))

Json = dict[str, Any]
Floats = NDArray[np.float64]
Kind = Literal["u1", "u2", "u4", "f4"]


def bin_of(steps: int, workers: int, cells: int = CELLS) -> int:
    """How many steps a column holds."""
    return max(1, math.ceil(steps * workers / cells))


def packed(array: NDArray[Any], kind: Kind) -> Json:
    with np.errstate(over="ignore"):
        raw = np.ascontiguousarray(array, dtype=f"<{kind}").tobytes()
    return {"kind": kind, "data": _zipped(raw)}


def packed_scores(scores: Floats) -> Json:
    """Floats of 24 bits, a plane of bytes after the other: 4 digits of any size, in little more than half the space."""
    largest = float(np.finfo(np.float32).max)
    bits = np.clip(scores, -largest, largest).astype("<f4").view("<u4").astype(np.uint64)
    rounded = np.where(np.isnan(scores), bits, np.minimum(bits + 0x80, (bits & 0x80000000) | 0x7F7FFFFF))
    planes = [(rounded >> shift & 0xFF).astype(np.uint8).tobytes() for shift in (24, 16, 8)]
    return {"kind": "f3", "data": _zipped(b"".join(planes))}


def _zipped(raw: bytes) -> str:
    return base64.b64encode(gzip.compress(raw, compresslevel=6, mtime=0)).decode()


def pack(records: Sequence[Record], workers: int, bin: int, start: int = 0) -> Json:  # noqa: A002
    """The steps from `start` on, which is the first of a bin."""
    records = records[start:]
    cells = _cells(records, workers)
    texts = _Texts()
    found: Json = {
        "from": start,
        "bin": bin,
        "workers": workers,
        **_columns(records, bin),
        "errors": _errors(records, texts),
        "skipped": _skipped(records, texts),
    }
    found["texts"] = texts.texts
    ranked = (cells.rank > 0).sum(1)
    judged = (cells.state & (KEPT | DROPPED)) > 0
    if bin == 1:
        score, rank, state = cells.score, cells.rank, cells.state
    else:
        score = _binned(cells.score, bin, _mean)
        rank = np.nan_to_num(_binned(np.where(cells.rank > 0, cells.rank, np.nan), bin, _mean)).round()
        state = _binned(cells.state, bin, np.bitwise_or.reduce)
        ranked = np.nan_to_num(_binned(np.where(ranked > 0, ranked, np.nan), bin, _mean)).round()
        dropped = np.where(judged, (cells.state & DROPPED) > 0, np.nan)
        found["share"] = packed((255 * np.nan_to_num(_binned(dropped, bin, _mean))).round(), "u1")
    found["score"] = packed_scores(score)
    found["rank"] = packed(rank, "u1" if workers < 256 else "u2")
    found["state"] = packed(state, "u1")
    found["ranked"] = packed(ranked, "u2")
    return found


class _Cells:
    """What the records say of each worker at each step, all [T, m]."""

    def __init__(self, steps: int, workers: int) -> None:
        self.score: Floats = np.full((steps, workers), np.nan)
        self.rank: NDArray[np.uint16] = np.zeros((steps, workers), np.uint16)  # 1 is best, 0 where there is none
        self.state: NDArray[np.uint8] = np.zeros((steps, workers), np.uint8)


def _cells(records: Sequence[Record], workers: int) -> _Cells:
    cells = _Cells(len(records), workers)
    for t, record in enumerate(records):
        if record.scores is not None:
            cells.score[t] = scores = _floats(record.scores)
            usable = ~np.isnan(scores)
            better = np.searchsorted(np.sort(-scores[usable]), -scores[usable])
            cells.rank[t, usable] = 1 + better
        cells.state[t] = _states(record, workers)
    return cells


def _floats(values: Sequence[float | None]) -> Floats:
    found = np.array(values, dtype=np.float64)  # None becomes NaN
    return np.where(np.isfinite(found), found, np.nan)


def _states(record: Record, workers: int) -> NDArray[np.uint8]:
    state = np.zeros(workers, np.uint8)

    def mark(of: Iterable[int], bit: int) -> None:
        state[list(of)] |= bit

    mark(record.unjudged, UNJUDGED)
    mark(record.quarantined, NOT_ASKED)
    mark(record.errors, ERROR)
    if record.kept is not None and any(record.kept):  # else nobody counts as dropped
        kept = np.array(record.kept, dtype=bool)
        judged = (state & (UNJUDGED | NOT_ASKED | ERROR)) == 0
        state[kept] |= KEPT
        state[~kept & judged] |= DROPPED
    mark(record.faulty or (), FAULTY)
    mark(record.late, LATE)
    return state


def _columns(records: Sequence[Record], bin: int) -> Json:  # noqa: A002
    """What there is one number of at each step."""

    def mean(values: Iterable[float | None]) -> Json:
        return packed(_binned(_or_nan(values), bin, _mean), "f4")

    def last(values: Iterable[float | None]) -> Json:
        return packed(_binned(_or_nan(values), bin, _last), "f4")

    phases = dict.fromkeys(phase for record in records for phase in record.seconds)
    kinds = dict.fromkeys(kind for record in records for kind in record.workers)
    return {
        "lr": last(r.lr for r in records),
        "samples": mean(r.samples for r in records),
        "accuracy": last(r.accuracy if r.evaluated else None for r in records),
        "loss": last(_evaluated_loss(r) for r in records),
        "seconds": {str(phase): mean(r.seconds.get(phase, 0.0) for r in records) for phase in phases},
        "alive": {str(kind): last(r.workers.get(kind) for r in records) for kind in kinds},
    }


def _evaluated_loss(record: Record) -> float | None:
    """Infinity stands for one that was not finite."""
    if not record.evaluated:
        return None
    return math.inf if record.train_loss is None else record.train_loss


def _or_nan(values: Iterable[float | None]) -> Floats:
    return np.array(list(values), dtype=np.float64)  # None becomes NaN


def _binned(values: NDArray[Any], bin: int, reduce: Callable[..., NDArray[Any]]) -> NDArray[Any]:  # noqa: A002
    """One value of each `bin` along the first axis, the last of which may be shorter."""
    if bin == 1:
        return values
    parts = [reduce(values[i : i + bin], axis=0) for i in range(0, len(values), bin)]
    return np.stack(parts) if parts else values


def _mean(values: Floats, axis: int) -> Floats:
    """Over what is there; NaN where nothing is."""
    there = ~np.isnan(values)
    count = there.sum(axis)
    total = np.where(there, values, 0.0).sum(axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _last(values: Floats, axis: int) -> NDArray[Any]:
    assert axis == 0
    there = values[~np.isnan(values)]
    return np.asarray(there[-1] if len(there) else np.nan)


class _Texts:
    """Each text once, cut to a length."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._index: dict[str, int] = {}

    def index(self, text: str) -> int:
        shown = str(text)
        if shown not in self._index and len(self.texts) >= TEXTS:
            shown = shown.partition(":")[0]
        shown = shown if len(shown) <= LENGTH else shown[: LENGTH - 1] + "\N{HORIZONTAL ELLIPSIS}"
        if shown not in self._index:
            self._index[shown] = len(self.texts)
            self.texts.append(shown)
        return self._index[shown]


def _errors(records: Sequence[Record], texts: _Texts) -> Json:
    found = [(r.step, worker, texts.index(text)) for r in records for worker, text in r.errors.items()]
    table = np.array(found, dtype=np.int64).reshape(-1, 3)
    return {name: packed(table[:, i], "u4") for i, name in enumerate(("step", "worker", "text"))}


def _skipped(records: Sequence[Record], texts: _Texts) -> Json:
    found = [(record.step, texts.index(record.skipped)) for record in records if record.skipped is not None]
    table = np.array(found, dtype=np.int64).reshape(-1, 2)
    return {name: packed(table[:, i], "u4") for i, name in enumerate(("step", "text"))}


def figures(records: Sequence[Record], ledger: Ledger) -> Json:
    """The few numbers of a run, and what is known of each worker."""
    rows = [{**asdict(row), "evidence": _finite(row.evidence)} for row in ledger.rows]
    return {
        "steps": len(records),
        "summary": {name: _finite(value) for name, value in asdict(summarize(records)).items()},
        "ledger": {
            "rows": rows,
            "threshold": ledger.threshold,
            "error_rate": ledger.error_rate,
            "words": in_words(ledger),
        },
    }


def _finite(value: float | None) -> float | None:
    """JSON has no infinity; a number that large stands for it."""
    return value if value is None or math.isfinite(value) else math.copysign(1e300, value)
