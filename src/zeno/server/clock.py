"""Seconds by phase of a step."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Clock:
    """Seconds by phase; time in an inner phase does not count for the outer one."""

    def __init__(self, phases: Iterable[str] = ("gradients", "scores", "rule")) -> None:
        self.seconds = dict.fromkeys(phases, 0.0)  # other phases are added when they end
        self._inner = 0.0

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        outer, self._inner = self._inner, 0.0
        start = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            self.seconds[phase] = self.seconds.get(phase, 0.0) + elapsed - self._inner
            self._inner = outer + elapsed
