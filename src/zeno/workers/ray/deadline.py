"""How long a step waits for replies."""

import statistics
from collections import deque


class Deadline:
    """Seconds that a step waits for replies: a fixed number, or a multiple of what recent steps needed.

    What a step needed is the time of its last reply in time, not of a typical one: otherwise 19 quick faulty workers
    could shut out the one good worker. A step that ran into the deadline counts by the replies that did arrive, so an
    actor that hangs does not stretch it.
    """

    MULTIPLE, LEAST, MOST, FIRST = 4.0, 5.0, 600.0, 120.0

    def __init__(self, seconds: float | None) -> None:
        self.fixed = seconds
        self._needed: deque[float] = deque(maxlen=25)

    @property
    def seconds(self) -> float:
        if self.fixed is not None:
            return self.fixed
        if not self._needed:
            return self.FIRST
        return min(max(self.MULTIPLE * statistics.median(self._needed), self.LEAST), self.MOST)

    def longer(self, times: float) -> float:
        """So many times the seconds, up to `MOST`; a fixed number stays as it is."""
        return self.seconds if self.fixed is not None else min(times * self.seconds, self.MOST)

    def needed(self, seconds: float) -> None:
        self._needed.append(seconds)

    def too_short(self, seconds: float) -> None:
        """No actor replied within this time, though some are alive: wait longer from now on."""
        self._needed.clear()
        self._needed.append(seconds)
