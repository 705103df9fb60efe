"""A progress bar on stderr, if that is a terminal: appears after two seconds, disappears at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from threading import Timer
from typing import Any, TypeVar

DELAY = 2.0  # seconds

T = TypeVar("T")


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield `items`; show a progress bar once it takes longer than two seconds.

    Nothing is shown without rich, or where stderr is not a terminal.

    Args:
        description: what is being done.
        total: how many items there are; None: their len(), if they have one.

    Example:
        >>> sum(track([1, 2, 3], "adding"))
        6
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield from items
        return
    if total is None and isinstance(items, Sized):
        total = len(items)
    bar = _Bar(description, total)
    # A timer, because the first item may be the slow one.
    timer = Timer(DELAY, bar.show)
    timer.daemon = True
    timer.start()
    try:
        for item in items:
            yield item
            bar.advance()
    finally:
        timer.cancel()
        timer.join()  # it may be running
        bar.hide()


class _Bar:
    def __init__(self, description: str, total: int | None) -> None:
        self.description, self.total, self.done = description, total, 0
        self.progress: Any = None

    def show(self) -> None:
        try:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                SpinnerColumn,
                TextColumn,
                TimeElapsedColumn,
            )
        except ImportError:
            return
        text = TextColumn("{task.description}", markup=False)
        columns = (SpinnerColumn(), text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        progress = Progress(*columns, console=Console(stderr=True), transient=True)
        progress.add_task(self.description, total=self.total)
        progress.start()
        self.progress = progress

    def advance(self) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress.update(self.progress.task_ids[0], completed=self.done)

    def hide(self) -> None:
        if self.progress is not None:
            self.progress.stop()
