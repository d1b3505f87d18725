"""The worker map: worker x step, light for candidates with a large share of the update, dark for dropped ones."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from zeno.records.comparison import num_above_and_below
from zeno.records.record import Record

MOST_COLUMNS = 1000  # an even number
KEPT = 0.6, 1.0  # grey of the lowest score, and of the highest
DROPPED = 0.0, 0.4
NOBODY_KEPT = 0.3, 1.0
UNRANKED = 0.5  # the place of all workers where the rule does not rank
ERROR = 0.85, 0.15, 0.15  # red
NOT_ASKED = 0.35, 0.5, 0.75  # blue
LEGEND = (
    "One row per worker, the first at the top; one column per step, or per few steps. Light: kept; the darker, the "
    "smaller its share of the update is, compared with the largest share at that step. Dark: dropped. Both are darker "
    "for lower scores. Red: no usable reply. Bluish: not asked, over its last shade; or no update. One more row at "
    "the bottom, if updates contain the server's own gradient, shows its share: black for none, white for all of the "
    "update."
)


class WorkerMap:
    """Worker x step as an image of bounded size: once it is full, neighbouring columns are averaged in pairs.

    Workers may join: a record with more of them adds rows.
    """

    def __init__(self, workers: int) -> None:
        # Of colours, over the steps of a column. The last row is the server's.
        self._sums = np.zeros((MOST_COLUMNS, workers + 1, 3))
        self._counts = np.zeros(MOST_COLUMNS)
        self._width = 1  # steps per column
        self._last = np.full((workers, 3), NOT_ASKED)  # each worker's colour when last asked
        self.steps = 0
        self.has_server = False  # whether any update contains the server's own gradient

    def add(self, record: Record) -> None:
        self._widen(len(record.kept or ()))
        record = record.widened(len(self._last))
        if self.steps == MOST_COLUMNS * self._width:
            self._sums, self._counts = _in_pairs(self._sums), _in_pairs(self._counts)
            self._width *= 2
        column = self.steps // self._width
        own = NOT_ASKED if record.kept is None else (record.own,) * 3
        self._sums[column] += [*self._colours(record), np.clip(own, 0, 1)]
        self.has_server |= record.own > 0
        self._counts[column] += 1
        self.steps += 1

    def _widen(self, workers: int) -> None:
        """Adds the rows of workers that joined: they were not asked before."""
        more = np.full((max(0, workers - len(self._last)), 3), NOT_ASKED)
        if len(more):
            unasked = self._counts[:, None, None] * more
            self._sums = np.concatenate([self._sums[:, :-1], unasked, self._sums[:, -1:]], axis=1)
            self._last = np.concatenate([self._last, more])

    def _colours(self, record: Record) -> npt.NDArray[np.float64]:
        """[m, 3] the colours of the workers at a step."""
        colours = np.full_like(self._last, NOT_ASKED)
        if record.kept is not None:
            places = _places(record.scores, len(colours))
            kept, dropped, nobody = (low + (high - low) * places for low, high in (KEPT, DROPPED, NOBODY_KEPT))
            shares = _shares(record)
            shades = shares * kept + (1 - shares) * dropped if any(record.kept) else nobody
            colours[:] = shades[:, None]
            colours[record.quarantined] = (self._last[record.quarantined] + NOT_ASKED) / 2
        colours[list(record.errors)] = ERROR
        asked = np.setdiff1d(np.arange(len(colours)), record.quarantined)
        self._last[asked] = colours[asked]
        return colours

    def image(self) -> npt.NDArray[np.uint8]:
        """[height, width, 3]; each row and each column is a few pixels wide."""
        columns, rows = -(-self.steps // self._width), len(self._last) + self.has_server
        means = self._sums[:columns, :rows] / self._counts[:columns, None, None]  # [columns, rows, 3]
        pixels: npt.NDArray[np.uint8] = np.round(255 * means).astype(np.uint8).transpose(1, 0, 2)
        height, width = min(12, max(3, 400 // rows)), min(8, MOST_COLUMNS // max(1, columns))
        return pixels.repeat(height, axis=0).repeat(width, axis=1)


def _in_pairs(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The sums of neighbouring pairs, padded with zeros to the same length."""
    sums = values[0::2] + values[1::2]
    return np.concatenate([sums, np.zeros_like(sums)])


def _shares(record: Record) -> npt.NDArray[np.float64]:
    """[m] 1 for the largest weight, 0 for dropped and subtracted candidates; 1 for all that were kept if not known."""
    weights = np.array(record.kept if record.weights is None else record.weights, dtype=float)
    return np.asarray(np.clip(weights / max(np.abs(weights).max(initial=0), 1e-300), 0, 1))


def _places(scores: Sequence[float | None] | None, workers: int) -> npt.NDArray[np.float64]:
    """[m] 1 for the highest score, 0 for the lowest and for missing ones."""
    if scores is None:
        return np.full(workers, UNRANKED)
    values = np.array([-math.inf if score is None else score for score in scores])
    usable = values > -math.inf
    num_higher, _ = num_above_and_below(values, values)
    return np.where(usable, 1 - num_higher / max(1, usable.sum() - 1), 0.0)
