"""Bets against workers: evidence that is valid at any time, however long a run is and however often one looks."""

import numpy as np
from numpy.typing import NDArray

STAKES = np.array([[0.1], [0.3], [0.9]])  # shares of the money, bet side by side: for weak and strong signals
MOST_EVIDENCE = 1e100  # a cap, against overflow

Values = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Bets:
    """A bet against each worker. If no factor is above 1 on average, the money ever reaches N with probability 1 / N.

    It starts as one unit, which waits. At step n, 1 / (n * (n + 1)) of it is invested, and stays invested: so a fault
    that begins late is found too.
    """

    def __init__(self, workers: int) -> None:
        self._invested = np.zeros((len(STAKES), workers))
        self._waiting = np.ones(workers)
        self._steps = np.zeros(workers)
        self.money = np.ones(workers)

    def add(self, factors: Values, on: Mask) -> None:
        """Adds a step: `factors` [3, m] multiply three parts of what is invested; there are bets only where `on`."""
        new = np.where(on, 1 / ((self._steps + 1) * (self._steps + 2)), 0.0)
        self._invested = np.minimum((self._invested + new) * np.where(on, factors, 1.0), MOST_EVIDENCE)
        self._waiting = self._waiting - new
        self._steps = self._steps + on
        self.money = self._invested.mean(axis=0) + self._waiting

    def restart(self, worker: int) -> None:
        self._invested[:, worker], self._steps[worker] = 0.0, 0.0
        self._waiting[worker], self.money[worker] = 1.0, 1.0


def on_a_mean(gains: Values) -> Values:
    """[3, m] the factors of bets that the mean of the gains [m] is above 0; a gain is at least -1."""
    return 1 + STAKES * gains


def on_a_rate(events: Mask, rate: float | Values, others: Values) -> Values:
    """[3, m] the factors of bets that events [m] do not have this rate, but one of the `others` [3, 1] or [3, m]."""
    found: Values = np.where(events, others / rate, (1 - others) / (1 - rate))
    return found
