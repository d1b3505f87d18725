"""How far a good worker may seem worse than others: by its cosine with the server's own gradient, or by its score.

Rules without samples of the server's own have no other measure of a worker than its place among the others. The
trusted workers are those that ranked highest until now, as many as the rule kept at the step before. For a good worker
among good ones, the share of them that scores higher minus the share that scores lower is 0 on average, for any
distribution of scores, because earlier steps do not tell who scores higher next.

Good workers may have different data. Therefore the difference has to exceed a slack: several times the long-run spread
of the workers beyond chance, measured within the groups that wide gaps between them leave. Faulty workers far from the
good ones leave the slack small; workers that all differ make it large. Suspects do not count for it.
"""

import math

import numpy as np
from numpy.typing import NDArray

from zeno.records.betting import Mask, Values

SLACK = 6.0  # standard deviations by which good workers may differ; more where few places give a poor estimate
ENOUGH = 4  # distinct places needed to estimate how workers differ
BY_CHANCE = 2.0  # the slack is at least this many standard errors of a place
FARTHEST = 0.99  # places are clipped to this distance from the middle
MANY = 12  # places needed to look for three groups
APART = 4.0  # factor by which the third group has to reduce the variance
SLACK_OF_SIMILAR = 0.3  # the slack where data is known to be similar: shards of ten batches differ by less
FADE = 0.99  # decay per step


class Cosines:
    """The decayed mean of each worker's cosine with the server's own gradient, and its usual size."""

    def __init__(self, workers: int) -> None:
        self._sums, self._squares, self._weights = np.zeros((3, workers))

    @property
    def size(self) -> Values:
        """[m] the root of the mean square of each worker's cosines at the earlier steps; 1 at first."""
        seen = self._weights > 0
        return np.sqrt(np.where(seen, self._squares / np.where(seen, self._weights, 1.0), 1.0))

    def add(self, cosines: Values, known: Mask, used: Mask) -> tuple[Values, float]:
        """The lowest mean of another worker that is `used` [m], and the mean of all these, at the earlier steps.

        Then adds this step. 0 if there is none.
        """
        means = self._sums / np.maximum(self._weights, 1e-300)
        order = np.flatnonzero(used)[np.argsort(means[used], kind="stable")]
        lowest = np.full(len(means), means[order[0]] if len(order) else 0.0)
        if len(order):
            lowest[order[0]] = means[order[1]] if len(order) > 1 else 0.0
        self._sums = np.where(known, FADE * self._sums + cosines, self._sums)
        self._squares = np.where(known, FADE * self._squares + cosines**2, self._squares)
        self._weights = np.where(known, FADE * self._weights + 1, self._weights)
        return lowest, float(means[used].mean()) if len(order) else 0.0


class Places:
    """The place of each worker among the others over the steps, from -1 (last) to 1 (first)."""

    def __init__(self, workers: int) -> None:
        self.level = np.zeros(workers)  # how far below the trusted workers each was lately
        self._levels, self._level_weights = np.zeros((2, workers))  # decayed sums
        self._places, self._weights, self._squares = np.zeros((3, workers))  # decayed sums; squares: of weights
        self._scatter, self._scattered = 0.0, 0.0  # decayed sums: squared deviations from the mean place, and counts
        self._kept = workers  # at the last step that kept a worker
        self._slack = 1.0

    def add(self, scores: Values, kept: int, suspect: Mask) -> tuple[Values, float]:
        """How far each worker is below the trusted, and the slack; NaN is the score of one without a candidate.

        Who is trusted and the slack depend on earlier steps only: this step's places are added last.
        """
        asked = ~np.isnan(scores)
        above, beneath = num_above_and_below(scores, scores[asked])
        place = np.where(asked, (beneath - above) / max(1, asked.sum() - 1), 0.0)
        mean = self._places / np.maximum(self._weights, 1e-300)
        self._slack = self._new_slack(mean, suspect)
        order = np.flatnonzero(asked)[np.argsort(-mean[asked], kind="stable")]
        below = _below(scores, order, self._kept)
        known = asked & (self._weights > 1)
        self._scatter = FADE * self._scatter + float(np.square(place - mean)[known].sum())
        self._scattered = FADE * self._scattered + float(known.sum())
        self._places = np.where(asked, FADE * self._places + place, self._places)
        self._weights = np.where(asked, FADE * self._weights + 1, self._weights)
        self._squares = np.where(asked, FADE**2 * self._squares + 1, self._squares)
        self._levels = np.where(asked, FADE * self._levels + below, self._levels)
        self._level_weights = np.where(asked, FADE * self._level_weights + 1, self._level_weights)
        self.level = self._levels / np.maximum(self._level_weights, 1e-300)
        self._kept = kept or self._kept
        return below, self._slack

    def _new_slack(self, mean: Values, suspect: Mask) -> float:
        """How far good workers may be below others: by how much places differ within a group, beyond chance."""
        seen = (self._weights > 2) & ~suspect
        means = np.clip(mean[seen], -FARTHEST, FARTHEST)
        places = np.unique(means)  # workers that send the same candidates count once
        if len(places) < ENOUGH:
            return self._slack
        errors = self._scatter / self._scattered * self._squares[seen] / self._weights[seen] ** 2
        # Places crowd at both ends, so the spread is measured on the scale of arctanh, where they do not.
        chance = float(np.median(errors / (1 - means**2) ** 2))
        spread = math.sqrt(max(0.0, _variance_within_groups(np.arctanh(places)) - chance))
        few = (len(places) / (len(places) - 3)) ** 2  # near 1 if there are many
        slack = math.tanh(SLACK * few * spread)
        return max(slack, min(1.0, BY_CHANCE * math.sqrt(float(np.median(errors)))))


def num_above_and_below(scores: Values, among: Values) -> tuple[Values, Values]:
    """[m] for each score, how many values of `among` are higher, and how many are lower."""
    ordered = np.sort(among)
    above = len(ordered) - np.searchsorted(ordered, scores, side="right")
    return above.astype(float), np.searchsorted(ordered, scores, side="left").astype(float)


def _below(scores: Values, order: NDArray[np.intp], num_trusted: int) -> Values:
    """[m] the share of the trusted workers that score higher than each worker, minus the share that score lower."""
    trusted = order[:num_trusted]
    others = np.full(len(scores), len(trusted))
    others[trusted] -= 1
    above, below = num_above_and_below(scores, scores[trusted])
    found: Values = (above - below) / np.maximum(others, 1)
    if len(trusted) == 1 and len(order) > 1:  # a single trusted worker is compared with the next one
        one, two = order[:2]
        found[one] = float(scores[two] > scores[one]) - float(scores[two] < scores[one])
    return found


def _variance_within_groups(places: Values) -> float:
    """The variance of sorted places within two groups, split at the widest gap; or within three if much smaller."""
    widest = np.argsort(np.diff(places))[::-1] + 1

    def with_splits(num: int) -> float:
        groups = np.split(places, np.sort(widest[:num]))
        return sum(float(np.square(group - group.mean()).sum()) for group in groups) / (len(places) - len(groups))

    two = with_splits(1)
    three = with_splits(2) if len(places) >= MANY else two
    return three if three < two / APART else two
