"""Records -> the arrays that the page draws, as JSON: each one compressed by gzip, in base64, little-endian.

Arrays of cells are [columns, m]. A column is one step, or a bin of `bin_size` steps where a run has more cells than a
page should hold.
"""

import base64
import gzip
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zeno.records.comparison import num_above_and_below
from zeno.records.record import Record, summarize
from zeno.report.run_view import RunView

WHOLE = 127  # the largest weight of a column, in one byte
CELLS = 2_500_000  # in all runs of a page together
TEXTS = 2_000  # distinct ones per run; beyond these only the kind of a text is kept
LENGTH = 300  # of a text

KEPT, DROPPED, ERROR, NOT_ASKED, FAULTY, LATE = (1 << bit for bit in range(6))

Json = dict[str, Any]
Floats = NDArray[np.float64]
Reduce = Callable[..., NDArray[Any]]  # [steps, ...] -> [...]


def bin_of(steps: int, workers: int, cells: int = CELLS) -> int:
    """The number of steps per column."""
    return max(1, math.ceil(steps * workers / cells))


def packed(array: NDArray[Any], kind: str) -> Json:
    """An array as floats (`f4`), or rounded to integers (such as `u2` or `i1`), where NaN becomes 0."""
    if kind != "f4":
        array = np.nan_to_num(array).round()
    with np.errstate(over="ignore"):
        raw = np.ascontiguousarray(array, dtype=f"<{kind}").tobytes()
    return {"kind": kind, "data": _zipped(raw)}


def packed_scores(scores: Floats) -> Json:
    """Floats of 24 bits, one plane of bytes after the other: 4 digits of any size, in about half the space."""
    largest = float(np.finfo(np.float32).max)
    bits = np.clip(scores, -largest, largest).astype("<f4").view("<u4").astype(np.uint64)
    rounded = np.where(np.isnan(scores), bits, np.minimum(bits + 0x80, (bits & 0x80000000) | 0x7F7FFFFF))
    planes = [(rounded >> shift & 0xFF).astype(np.uint8).tobytes() for shift in (24, 16, 8)]
    return {"kind": "f3", "data": _zipped(b"".join(planes))}


def _zipped(raw: bytes) -> str:
    return base64.b64encode(gzip.compress(raw, compresslevel=6, mtime=0)).decode()


def pack(records: Sequence[Record], workers: int, bin_size: int, start: int = 0) -> Json:
    """The steps from `start` on, which is the first step of a bin."""
    records = [record.widened(workers) for record in records[start:]]
    score, rank, state, weight = _cells(records, workers)
    texts = _Texts()
    errors = [(r.step, i, texts.index(e.text, e.kind.value)) for r in records for i, e in r.errors.items()]
    skipped = [(r.step, texts.index(r.skipped, "skipped")) for r in records if r.skipped is not None]
    noted = [(r.step, texts.index(r.note, "note")) for r in records if r.note is not None]
    found: Json = {
        "from": start,
        "bin": bin_size,
        "workers": workers,
        **_columns(records, bin_size),
        "errors": _packed_table(errors, ("step", "worker", "text")),
        "skipped": _packed_table(skipped, ("step", "text")),
        "noted": _packed_table(noted, ("step", "text")),
        "texts": list(texts),
    }
    ranked = (rank > 0).sum(1)
    largest = _largest(weight)
    if bin_size > 1:
        dropped = np.where(state & (KEPT | DROPPED), (state & DROPPED) > 0, np.nan)
        found["share"] = packed(255 * _binned(dropped, bin_size, _mean), "u1")
        score, weight, largest = (_binned(values, bin_size, _mean) for values in (score, weight, largest))
        rank, ranked = (_binned(np.where(count > 0, count, np.nan), bin_size, _mean) for count in (rank, ranked))
        state = _binned(state, bin_size, np.bitwise_or.reduce)
    if any(record.arrivals is not None for record in records):
        found["staleness"] = packed(1 + _binned(_staleness(records, workers), bin_size, _mean), "u2")  # 0: no arrival
    found["score"] = packed_scores(score)
    found["rank"] = packed(rank, "u1" if workers < 256 else "u2")
    found["state"] = packed(state, "u1")
    found["ranked"] = packed(ranked, "u2")
    found["weight"] = packed(np.clip(WHOLE * weight / largest[:, None], -WHOLE, WHOLE), "i1")
    found["largest"] = packed(largest, "f4")
    return found


def _cells(records: Sequence[Record], workers: int) -> tuple[Floats, NDArray[Any], NDArray[np.uint8], Floats]:
    """[steps, m] each: the score, the rank (1 is best, 0: none), the state and the weight of each worker at each step.

    The weight is NaN where a worker was neither kept nor dropped, and in records of versions without weights.
    """
    score, weight = np.full((2, len(records), workers), np.nan)
    rank = np.zeros((len(records), workers), np.uint16)
    state = np.zeros((len(records), workers), np.uint8)
    for t, record in enumerate(records):
        if record.scores is not None:
            score[t] = record.scores  # None becomes NaN
            usable = ~np.isnan(score[t])
            rank[t, usable] = 1 + num_above_and_below(score[t, usable], score[t, usable])[0]
        state[t] = _states(record, workers)
        if record.weights is not None:
            weight[t] = np.where(state[t] & (KEPT | DROPPED), record.weights, np.nan)
    return score, rank, state, weight


def _staleness(records: Sequence[Record], workers: int) -> Floats:
    """[steps, m] the staleness of each arrival, up to what two bytes hold; NaN where a worker did not arrive."""
    found = np.full((len(records), workers), np.nan)
    for t, record in enumerate(records):
        for worker, staleness in record.staleness.items():
            found[t, worker] = min(staleness, 2**16 - 2)
    return found


def _largest(weight: Floats) -> Floats:
    """[steps] the largest weight of a worker at each step, without its sign; NaN if there is none."""
    largest = np.nan_to_num(np.abs(weight)).max(axis=1, initial=0)
    return np.where(largest > 0, largest, np.nan)


def _states(record: Record, workers: int) -> NDArray[np.uint8]:
    state = np.zeros(workers, np.uint8)
    state[record.quarantined] |= NOT_ASKED
    state[list(record.errors)] |= ERROR
    if record.kept is not None and any(record.kept):  # otherwise no worker counts as dropped
        kept = np.array(record.kept, dtype=bool)
        state[~kept & (state == 0)] |= DROPPED
        state[kept] |= KEPT
    state[record.faulty or []] |= FAULTY
    state[record.late] |= LATE
    return state


def _columns(records: Sequence[Record], bin_size: int) -> Json:
    """One number per column: means, or last values."""

    def column(reduce: Reduce, values: Iterable[float | None]) -> Json:
        return packed(_binned(np.array(list(values), dtype=float), bin_size, reduce), "f4")  # None becomes NaN

    def loss(record: Record) -> float:
        return math.inf if record.train_loss is None else record.train_loss

    phases = dict.fromkeys(phase for record in records for phase in record.seconds)
    kinds = dict.fromkeys(kind for record in records for kind in record.workers)
    return {
        "lr": column(_last, (r.lr for r in records)),
        "own": column(_mean, (None if r.kept is None else r.own for r in records)),
        "accuracy": column(_last, (r.accuracy for r in records)),
        "loss": column(_last, (loss(r) if r.evaluated else None for r in records)),
        "seconds": {phase: column(_mean, (r.seconds.get(phase, 0.0) for r in records)) for phase in phases},
        "alive": {kind: column(_last, (r.workers.get(kind) for r in records)) for kind in kinds},
    }


def _binned(values: NDArray[Any], size: int, reduce: Reduce) -> NDArray[Any]:
    """Reduces every `size` values along the first axis to one; the last bin may be shorter."""
    if size == 1:
        return values
    parts = [reduce(values[i : i + size]) for i in range(0, len(values), size)]
    return np.stack(parts) if parts else values


def _mean(values: Floats) -> Floats:
    """The mean of the values that are not NaN; NaN where all are."""
    with np.errstate(invalid="ignore"):  # 0 / 0
        return np.asarray(np.nansum(values, axis=0) / (~np.isnan(values)).sum(axis=0))


def _last(values: Floats) -> Floats:
    """The last of the values that are not NaN; NaN if all are."""
    return np.asarray(np.append(np.nan, values[~np.isnan(values)])[-1])


class _Texts(dict[str, int]):
    """Distinct texts, each cut to a maximum length -> their indices. Of too many, a short form is kept."""

    def index(self, text: str, short: str) -> int:
        shown = text if text in self or len(self) < TEXTS else short
        shown = shown if len(shown) <= LENGTH else shown[: LENGTH - 1] + "\N{HORIZONTAL ELLIPSIS}"
        return self.setdefault(shown, len(self))


def _packed_table(rows: Sequence[tuple[int, ...]], names: Sequence[str]) -> Json:
    table = np.array(rows, dtype=np.int64).reshape(-1, len(names))
    return {name: packed(table[:, i], "u4") for i, name in enumerate(names)}


def packed_run(run: RunView, bin_size: int, start: int = 0) -> Json:
    """The settings, summary and ledger of a run, and its steps from `start` on."""
    ledger = run.ledger
    return {
        **pack(run.records, run.workers, bin_size, start),
        "name": run.name,
        "settings": run.settings,
        "planned": run.planned,
        "notes": run.notes,
        "steps": len(run.records),
        "num_lines": run.num_lines,
        "peaks": _peaks(run.records),
        "staleness_of_workers": _mean_staleness(run.records, run.workers),
        "summary": {name: _finite(value) for name, value in asdict(summarize(run.records)).items()},
        "ledger": {
            "rows": [{**asdict(row), "evidence": _finite(row.evidence)} for row in ledger.rows],
            "threshold": ledger.threshold,
            "error_rate": ledger.error_rate,
            "words": str(ledger),
        },
    }


def _mean_staleness(records: Sequence[Record], workers: int) -> list[float | None] | None:
    """[m] of an asynchronous run, None for a worker that never arrived; None if steps are synchronous."""
    if not any(record.arrivals is not None for record in records):
        return None
    return [None if math.isnan(mean) else float(mean) for mean in _mean(_staleness(records, workers))]


def _peaks(records: Sequence[Record]) -> Json:
    """The most seconds of one step, for each phase; and of all phases together, with that step."""
    by_phase: dict[str, float] = {}
    for record in records:
        for phase, seconds in record.seconds.items():
            by_phase[phase] = max(seconds, by_phase.get(phase, 0.0))
    longest = max(records, key=lambda record: sum(record.seconds.values()), default=None)
    whole = None if longest is None else {"step": longest.step, "seconds": sum(longest.seconds.values())}
    return {"phases": by_phase, "longest": whole}


def _finite(value: float | None) -> float | None:
    """Replaces infinity, which JSON does not have, by a very large number."""
    return value if value is None or math.isfinite(value) else math.copysign(1e300, value)
