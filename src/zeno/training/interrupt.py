"""Ctrl-C and SIGTERM, held back to the end of a step, so that what is saved then is whole."""

import logging
import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Stopped(KeyboardInterrupt):
    """A run was asked to stop, and did so after a step; what there is was saved."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number


class Stop:
    """Inside, the first signal only sets `asked`; the second stops at once. Signals are the main thread's alone."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, note: str = "stopping after this step; once more to stop at once") -> None:
        self.note = note  # what the first signal is answered with
        self.asked: int | None = None  # which signal did
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                if signal.getsignal(number) != signal.SIG_IGN:  # as a shell sets it for jobs in the background
                    self._before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None:
            raise Stopped(number)
        self.asked = number
        logging.getLogger("zeno").info(self.note)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
