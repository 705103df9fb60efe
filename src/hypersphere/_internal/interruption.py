"""Delay SIGTERM and Ctrl-C until a step is done or a file is written."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interruptions:
    """Record the first signal in `.signal` inside the `with`; the second one has its usual effect.

    Handlers belong to the main thread: in any other thread nothing is caught.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before = {}

    def __exit__(self, *_: object) -> None:
        self._restore()

    def reraise(self) -> None:
        """Raise what the recorded signal means: KeyboardInterrupt, or SystemExit with a shell's code for SIGTERM."""
        if self.signal is not None:
            raise KeyboardInterrupt if self.signal == signal.SIGINT else SystemExit(128 + self.signal)
