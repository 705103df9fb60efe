"""A progress bar: one line on stderr, drawn by rich on a terminal, removed at the end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import suppress
from threading import Timer
from typing import Any, TypeVar

DELAY = 2.0  # seconds before `track` shows its bar
_HERTZ = 5
_WIDEST = 120  # columns
_BAR = 16  # columns of the bar that are kept for it rather than for the title
_ECHO = 2  # columns left free for the ^C of a terminal: on the next line it would keep the bar from going

T = TypeVar("T")
Cell = tuple[str, str]  # a label and a value
State = tuple[int, int | None, Sequence[Cell]]  # what is done, of how much, and what stands behind the bar


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield `items`; show a progress bar once it takes longer than two seconds.

    Nothing is shown without rich, or where stderr is not a terminal.

    Args:
        description: what is being done.
        total: how many items there are; None: their len(), if they have one.
    """
    if (console := terminal()) is None:
        yield from items
        return
    if total is None and isinstance(items, Sized):
        total = len(items)
    begin, done = time.monotonic(), 0
    bar = LiveLine(console, description, lambda: (done, total, [("", clock(time.monotonic() - begin))]))
    timer = Timer(DELAY, bar.start)  # because the first item may be the slow one
    timer.daemon = True
    timer.start()
    try:
        for item in items:
            yield item
            done += 1
    finally:
        timer.cancel()
        timer.join()  # it may be running
        bar.stop()


def terminal() -> Any:
    """Return rich's console on stderr; None if that is no terminal a line can be redrawn on, or rich is missing."""
    if not is_terminal(sys.stderr):
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = Console(stderr=True)
    return console if console.is_terminal and not console.is_dumb_terminal else None


class LiveLine:
    """A line at the bottom of the terminal that rich redraws a few times a second; other output goes above it.

    Args:
        console: what :func:`terminal` returned.
        state: called for each drawing.
    """

    def __init__(self, console: Any, title: str, state: Callable[[], State]) -> None:
        from rich.live import Live

        self.console, self.title, self.state = console, title, state
        # What others print comes above the bar too, unless it goes to a file or a pipe.
        options: dict[str, Any] = {"transient": True, "redirect_stdout": is_terminal(sys.stdout)}
        self.live = Live(console=console, get_renderable=self.render, refresh_per_second=_HERTZ, **options)

    def start(self) -> None:
        self.live.start(refresh=True)

    def stop(self) -> None:
        with suppress(OSError):
            self.live.stop()

    def print(self, text: str) -> None:
        """Print a line above the bar, cut where the terminal ends."""
        with suppress(OSError):  # a closed terminal must not stop the work
            self.console.print(text, no_wrap=True, overflow="ellipsis", markup=False, highlight=False)

    def render(self) -> Any:
        """Return the current line."""
        from rich.progress_bar import ProgressBar
        from rich.table import Column, Table
        from rich.text import Text

        done, total, cells = self.state()
        width = min(self.console.width - _ECHO, _WIDEST)
        bar = ProgressBar(total=total or max(done, 1), completed=done)
        texts = [f"{done}" if total is None else f"{done}/{total}", joined(cells)]
        columns = Column(no_wrap=True), Column(ratio=1, min_width=8), Column(no_wrap=True), Column(no_wrap=True)
        line = Table.grid(*columns, padding=(0, 2, 0, 0), expand=True)
        line.width = width
        has_room = sum(map(len, (self.title, *texts))) + _BAR <= width
        line.add_row(Text(self.title if has_room else ""), bar, *map(Text, texts))
        return line


def joined(cells: Iterable[Cell]) -> str:
    return "  ".join(f"{label} {value}" if label else value for label, value in cells)


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # None or something that can write and no more; closed
        return False


def _in_child() -> None:
    """Undo rich's redirection in a forked process, where its lock may never be released."""
    sys.stdout = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
    sys.stderr = getattr(sys.stderr, "rich_proxied_file", sys.stderr)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
