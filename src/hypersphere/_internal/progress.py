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
_NARROW, _WIDE = 10, 60  # columns the bar itself has at least and at most
_ECHO = 2  # columns left free for the ^C of a terminal: on the next line it would keep the bar from going

T = TypeVar("T")
Cell = tuple[str, str]  # a label and a value


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
    if not is_terminal(sys.stderr):
        yield from items
        return
    if total is None and isinstance(items, Sized):
        total = len(items)
    begin, done, bar = time.monotonic(), 0, None

    def cells(brief: bool) -> dict[str, Cell]:
        of = "" if total is None else f"/{total}"
        passed = clock(time.monotonic() - begin)
        return {"what": ("", description), "bar": ("", ""), "done": ("", f"{done}{of}"), "time": ("", passed)}

    def show() -> None:
        nonlocal bar
        if (console := terminal()) is not None:
            bar = LiveLine(console, cells, lambda: done / (total or max(done, 1)), ("bar", "time", "what"))
            bar.start()

    # A timer, because the first item may be the slow one.
    timer = Timer(DELAY, show)
    timer.daemon = True
    timer.start()
    try:
        for item in items:
            yield item
            done += 1
    finally:
        timer.cancel()
        timer.join()  # it may be running
        if bar is not None:
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
        cells: called as cells(brief) for each drawing, returns the parts of the line by name; "bar" is the bar.
        share: returns how much of the work is done, in [0, 1].
        dropped: the parts to leave out on a narrow terminal, in this order.
    """

    def __init__(
        self,
        console: Any,
        cells: Callable[[bool], dict[str, Cell]],
        share: Callable[[], float],
        dropped: Sequence[str] = (),
    ) -> None:
        from rich.live import Live

        self.console, self._cells, self._share, self._dropped = console, cells, share, dropped
        # What others print comes above the bar too, unless it goes to a file or a pipe.
        options: dict[str, Any] = {"transient": True, "redirect_stdout": is_terminal(sys.stdout)}
        self.live = Live(console=console, get_renderable=self.render, refresh_per_second=_HERTZ, **options)

    def start(self) -> None:
        self.live.start(refresh=True)

    def stop(self) -> None:
        with suppress(OSError):
            self.live.stop()

    def print(self, cells: Sequence[Cell], style: str = "") -> None:
        """Print a line above the bar; drop the last cells if there is no room."""
        from rich.text import Text

        while len(cells) > 1 and len(joined(cells)) > self.console.width:
            cells = cells[:-1]
        with suppress(OSError):  # a closed terminal must not stop the work
            self.console.print(Text("  ", style=style).join(map(_styled, cells)))

    def render(self) -> Any:
        """Return the current line, with as many cells as fit."""
        from rich.cells import cell_len
        from rich.text import Text

        brief = self._cells(True)
        less = [{k: v for k, v in brief.items() if k not in self._dropped[:n]} for n in range(len(self._dropped) + 1)]
        for cells in (self._cells(False), *less):
            room = self.console.width - _ECHO - cell_len(joined(cells.values()))
            if room >= ("bar" in cells) * _NARROW:
                break
        texts = (self._bar(min(room, _WIDE)) if name == "bar" else _styled(cell) for name, cell in cells.items())
        return Text("  ", no_wrap=True, overflow="crop").join(texts)

    def _bar(self, width: int) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        drawn = self.console.render(ProgressBar(total=1.0, completed=self._share(), width=width))
        text = Text.assemble(*((piece.text, piece.style or "") for piece in drawn))
        text.truncate(width, pad=True)
        return text


def _styled(cell: Cell) -> Any:
    from rich.text import Text

    label, value = cell
    return Text.assemble((f"{label} ", "dim"), value) if label else Text(value)


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
