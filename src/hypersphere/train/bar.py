"""The live bar of :mod:`hypersphere.train.display`, for which rich is needed."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.text import Text

from .display import Cell, Display, clock, count, described, is_terminal, joined, one_line, percent, short

_HERTZ = 5
_NARROW, _WIDE = 10, 60  # columns the bar itself has at least and at most
_ECHO = 2  # columns left free for the ^C of a terminal: on the next line it would keep the bar from going
_DROPPED = ("title", "energy", "rate", "accuracy", "bar", "loss", "left")  # in this order where there is no room


class Bar(Display):
    """A line at the bottom of the terminal, drawn again and again; above it one for every evaluation, which stay."""

    def __init__(self, title: str, total: int, start: int, console: Console) -> None:
        super().__init__(title, total, start)
        self._console = console
        # What others print comes above the bar too, unless it goes to a file or a pipe.
        ours, draw = is_terminal(sys.stdout), self.render
        self._live = Live(
            console=console, get_renderable=draw, refresh_per_second=_HERTZ, transient=True, redirect_stdout=ours
        )
        self._say([("", f"{self.title}: {total} steps")], style="bold")

    # Only now, so that what fails between the making of a display and its `with` leaves no bar behind.
    def __enter__(self) -> Display:
        self._live.start(refresh=True)
        return self

    def show(self, line: dict[str, Any]) -> None:
        super().show(line)
        if line.get("split") != "train":
            self._say(described(line, self.total))

    def note(self, text: str) -> None:
        self._say([("", one_line(text))])

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._live.stop()

    def _measure(self, now: float) -> None:
        if not self._marks:  # the first step, for those who use no `with`
            self._live.start()
        super()._measure(now)

    def render(self) -> Text:
        """The bar as it is now, with as much in it as there is room for."""
        full, brief = self._cells(brief=False), self._cells(brief=True)
        less = [{k: v for k, v in brief.items() if k not in _DROPPED[:gone]} for gone in range(len(_DROPPED) + 1)]
        for cells in (full, *less):
            room = self._console.width - _ECHO - cell_len(joined(cells.values()))
            if room >= ("bar" in cells) * _NARROW:
                break
        bar = self._drawn(min(room, _WIDE))
        pieces = (bar if key == "bar" else _styled(cell) for key, cell in cells.items())
        return Text("  ", no_wrap=True, overflow="crop").join(pieces)

    def _cells(self, brief: bool) -> dict[str, Cell]:
        cells = {
            "title": ("", self.title if len(self.title) <= 12 or not brief else self.title[:10] + ".."),
            "bar": ("", ""),
            "steps": ("", f"{self.step:>{len(str(self.total))}}/{self.total}"),
        }
        if self.loss is not None:
            cells["loss"] = ("loss", short(self.loss))
        if self.accuracy is not None:
            cells["accuracy"] = ("acc" if brief else "accuracy", percent(self.accuracy))
        if self.energy is not None:
            cells["energy"] = ("energy", short(self.energy))
        if self.rate is not None and self.left is not None:
            cells["rate"] = ("", count(self.rate) + ("/s" if brief else " samples/s"))
            cells["left"] = ("", clock(self.left) + ("" if brief else " left"))
        return cells

    def _drawn(self, width: int) -> Text:
        done = round(width * min(1.0, self.step / max(1, self.total)))
        line, rest = ("#", "-") if self._console.options.ascii_only else ("━", "━")
        return Text.assemble((line * done, "green"), (rest * (width - done), "bright_black"))

    def _say(self, cells: list[Cell], style: str = "") -> None:
        while len(cells) > 1 and len(joined(cells)) > self._console.width:
            cells = cells[:-1]
        text = Text("  ", style=style).join(map(_styled, cells))
        with contextlib.suppress(OSError):  # a terminal that is gone is no reason to stop a training
            self._console.print(text)


def _styled(cell: Cell) -> Text:
    label, value = cell
    return Text.assemble((f"{label} ", "dim"), value) if label else Text(value)


def _in_child() -> None:
    """What rich puts in place of stdout and stderr takes a lock that nobody gives back in a forked process."""
    sys.stdout = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
    sys.stderr = getattr(sys.stderr, "rich_proxied_file", sys.stderr)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
