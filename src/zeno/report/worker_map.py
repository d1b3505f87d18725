"""The worker map: worker x step, light for kept candidates, dark for dropped ones."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from zeno.records.betting import num_above_and_below
from zeno.records.record import Record

MOST_COLUMNS = 1000  # an even number
KEPT = 0.6, 1.0  # grey of the lowest score, and of the highest
DROPPED = 0.0, 0.4
NOBODY_KEPT = 0.3, 1.0
UNRANKED = 0.5  # the place of all workers where the rule does not rank
ERROR = 0.85, 0.15, 0.15  # red
NOT_JUDGED = 0.35, 0.5, 0.75  # blue
LEGEND = (
    "One row per worker, 0 at the top; one column per step, or per few steps. Light: kept. Dark: dropped; the darker, "
    "the lower its score was among the others. Red: no usable reply. Bluish: not judged (quarantined, or not examined "
    "by the rule), over its last shade; or the step made no update."
)


class WorkerMap:
    """Worker x step as an image of bounded size: once it is full, neighbouring columns are averaged in pairs."""

    def __init__(self, workers: int) -> None:
        self._sums = np.zeros((MOST_COLUMNS, workers, 3))  # of colours, over the steps of a column
        self._counts = np.zeros(MOST_COLUMNS)
        self._width = 1  # steps per column
        self._last = np.full((workers, 3), NOT_JUDGED)  # each worker's colour when last judged
        self.steps = 0

    def add(self, record: Record) -> None:
        if self.steps == MOST_COLUMNS * self._width:
            self._sums, self._counts = _in_pairs(self._sums), _in_pairs(self._counts)
            self._width *= 2
        column = self.steps // self._width
        self._sums[column] += self._colours(record)
        self._counts[column] += 1
        self.steps += 1

    def _colours(self, record: Record) -> npt.NDArray[np.float64]:
        """[m, 3] the colours of a step."""
        not_judged = [*record.unjudged, *record.quarantined]
        colours = np.full_like(self._last, NOT_JUDGED)
        if record.kept is not None:
            places = _places(record.scores, len(colours))
            of_dropped = DROPPED if any(record.kept) else NOBODY_KEPT
            low, high = np.where(np.array(record.kept)[:, None], KEPT, of_dropped).T
            colours[:] = (low + (high - low) * places)[:, None]
            colours[not_judged] = (self._last[not_judged] + NOT_JUDGED) / 2
        colours[list(record.errors)] = ERROR
        judged = np.setdiff1d(np.arange(len(colours)), not_judged)
        self._last[judged] = colours[judged]
        return colours

    def image(self) -> npt.NDArray[np.uint8]:
        """[height, width, 3]; each worker and each column is a few pixels wide."""
        columns, workers = -(-self.steps // self._width), self._sums.shape[1]
        means = self._sums[:columns] / self._counts[:columns, None, None]  # [columns, m, 3]
        pixels: npt.NDArray[np.uint8] = np.round(255 * means).astype(np.uint8).transpose(1, 0, 2)
        height, width = min(12, max(3, 400 // workers)), min(8, MOST_COLUMNS // max(1, columns))
        return pixels.repeat(height, axis=0).repeat(width, axis=1)


def _in_pairs(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The sums of neighbouring pairs, padded with zeros to the same length."""
    sums = values[0::2] + values[1::2]
    return np.concatenate([sums, np.zeros_like(sums)])


def _places(scores: Sequence[float | None] | None, workers: int) -> npt.NDArray[np.float64]:
    """[m] 1 for the highest score, 0 for the lowest and for missing ones."""
    if scores is None:
        return np.full(workers, UNRANKED)
    values = np.array([-math.inf if score is None else score for score in scores])
    usable = values > -math.inf
    num_higher, _ = num_above_and_below(values, values)
    return np.where(usable, 1 - num_higher / max(1, usable.sum() - 1), 0.0)
