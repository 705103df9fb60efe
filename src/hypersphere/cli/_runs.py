"""What tune and reproduce share: flags for the number of runs at a time and the time limit, and a progress bar."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..train.processes import Status
from ._output import integer, real


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", metavar="N", type=integer(1, 256), default=1, help="runs at a time (default: 1)")
    minutes = real("a number of minutes above 0", lambda value: 0 < value < math.inf)
    parser.add_argument(
        "--budget", metavar="MINUTES", type=minutes, help="stop after this time; run the command again to continue"
    )


@contextmanager
def shown(what: str, *, enabled: bool = True) -> Iterator[Status[Any]]:
    """Show a bar on a terminal; yield the status that it shows."""
    from .._internal.progress import LiveLine, State, clock, terminal

    status, begin, console = Status[Any](), time.monotonic(), terminal() if enabled else None
    if console is None:
        yield status
        return

    def state() -> State:
        running = ", ".join(task.name for task in status.running)
        return status.done, status.total, [("", clock(time.monotonic() - begin)), ("", running)]

    bar = LiveLine(console, what, state)
    bar.start()
    try:
        yield status
    finally:
        bar.stop()
