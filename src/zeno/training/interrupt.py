"""Ctrl-C and SIGTERM, deferred to the end of a step, so that the saved state is complete."""

import logging
import signal
import threading
from types import FrameType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """A signal ended the run after a step. What was done until then is saved."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number


class Interrupt:
    """Inside this context the first signal only makes `check` raise; the second one stops at once.

    Python handles signals in the main thread only; in other threads this does nothing.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, note: str = "stopping after this step; repeat to stop at once") -> None:
        self.note = note  # logged at the first signal
        self.asked: int | None = None  # the number of the signal received
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                if signal.getsignal(number) != signal.SIG_IGN:  # as a shell sets it for jobs in the background
                    self._before[number] = signal.signal(number, self._ask)
        return self

    def check(self) -> None:
        """Raises `Interrupted` if a signal was received."""
        if self.asked is not None:
            raise Interrupted(self.asked)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None:
            raise Interrupted(number)
        self.asked = number
        logging.getLogger("zeno").info(self.note)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
