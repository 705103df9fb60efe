"""Show a training on stderr: a live bar on a terminal, plain lines elsewhere.

A training step only stores its numbers: a thread of its own draws the bar a few times a second.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any, TextIO

from .._internal import progress
from .._internal.progress import Cell, clock, joined
from .._internal.tables import number, percent
from .._internal.text import escaped
from .storage.metrics import MetricsLine

RECENT = 30.0  # seconds over which the speed is measured
SILENCE = 10.0  # seconds after which a plain line is due
_MARK = 0.25  # seconds between two measurements of the speed
_DROPPED = ("title", "energy", "rate", "accuracy", "bar", "loss", "left")  # in this order on a narrow terminal


def make(title: str, total: int, start: int = 0, *, enabled: bool = True) -> Display:
    """Make the display of a training of `total` steps that begins after step `start`; use it in a `with`.

    Args:
        title: what is trained, in a few words.
        enabled: False: nothing is shown.

    Example:
        >>> with make("mlp on digits", 100, enabled=False) as display:
        ...     display.advance(1, 64, 2.3)
    """
    if not enabled:
        return Display(title, total, start)
    console = progress.terminal()
    return Plain(title, total, start, sys.stderr) if console is None else Bar(title, total, start, console)


class Display:
    """Track the progress and speed of a training and show nothing; subclasses show it.

    `rate` is in samples per second of training, without evaluations; `left` is in seconds and includes them. Both are
    measured over the last half minute, and None before that is possible.
    """

    def __init__(self, title: str, total: int, start: int = 0) -> None:
        self.title, self.total, self.step = escaped(title), total, start
        self.loss: float | None = None
        self.accuracy: float | None = None
        self.energy: float | None = None
        self.rate: float | None = None
        self._pace: float | None = None  # seconds a step
        self._samples, self._busy = 0, 0.0
        self._last = self._next = 0.0
        self._marks = deque[tuple[float, float, int, int]]()  # clock, seconds of training, samples, steps

    def advance(self, step: int, samples: int, loss: float | None = None) -> None:
        """Record a training step: its number and how many samples it had."""
        now = time.monotonic()
        self._busy += now - self._last
        self._samples += samples
        self._last, self.step = now, step
        if loss is not None:
            self.loss = loss
        if now >= self._next:
            self._measure(now)

    def show(self, line: MetricsLine) -> None:
        """Show a line of metrics."""
        self._last = time.monotonic()
        if line.split == "train":
            self.loss = line.values.get("loss", self.loss)
        else:
            self.accuracy = line.values.get("accuracy", self.accuracy)
        if (energy := total_energy(line)) is not None:
            self.energy = energy
        if line.split != "train":
            self._print(metric_cells(line, self.total))

    def note(self, text: str) -> None:
        """Show one line of text."""
        self._print([("", escaped(text))])

    def _print(self, cells: list[Cell]) -> None:
        """Show one line that stays."""

    def close(self) -> None:
        """Remove the bar, at the end and after an error."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def left(self) -> float | None:
        """Seconds left; counts down during a long step or evaluation too."""
        if self._pace is None:
            return None
        return max(0.0, (self.total - self.step) * self._pace - (time.monotonic() - self._marks[-1][0]))

    def _measure(self, now: float) -> None:
        marks = self._marks
        marks.append((now, self._busy, self._samples, self.step))
        while len(marks) > 2 and now - marks[1][0] >= RECENT:
            marks.popleft()
        # The first mark is after the first step, which is often slow (compilation).
        clock, busy, samples, step = (new - old for new, old in zip(marks[-1], marks[0], strict=True))
        if step > 0 and busy > 0:
            self.rate, self._pace = samples / busy, clock / step
        self._next = now + _MARK


class Plain(Display):
    """Print a line for every evaluation, and one every ten seconds in between."""

    def __init__(self, title: str, total: int, start: int, stream: TextIO | None) -> None:
        super().__init__(title, total, start)
        self._stream: TextIO | None = stream  # sys.stderr may be None
        self._spoke = 0.0
        self._say(f"{self.title}: {total} steps")

    def _print(self, cells: list[Cell]) -> None:
        self._say(joined(cells))

    def _measure(self, now: float) -> None:
        super()._measure(now)
        if now - self._spoke >= SILENCE:
            loss: dict[str, float | None] = {} if self.loss is None else {"loss": self.loss}
            cells = metric_cells(MetricsLine(self.step, "train", values=loss), self.total)
            if self.rate is not None and self.left is not None:
                cells += [("", count(self.rate) + " samples/s"), ("", clock(self.left) + " left")]
            self._say(joined(cells))

    def _say(self, text: str) -> None:
        self._spoke = time.monotonic()
        try:
            if self._stream is not None:
                print(text.rstrip(), file=self._stream, flush=True)
        except (OSError, ValueError):  # a closed stream must not stop the training
            self._stream = None


class Bar(Display):
    """A live line at the bottom of the terminal; above it one line per evaluation, which stays."""

    def __init__(self, title: str, total: int, start: int, console: Any) -> None:
        super().__init__(title, total, start)
        self.bar = progress.LiveLine(console, self._cells, lambda: min(1.0, self.step / max(1, self.total)), _DROPPED)
        self.bar.print([("", f"{self.title}: {total} steps")], style="bold")

    # Not in __init__: an error before the `with` would leave the bar behind.
    def __enter__(self) -> Display:
        self.bar.start()
        return self

    def _print(self, cells: list[Cell]) -> None:
        self.bar.print(cells)

    def close(self) -> None:
        self.bar.stop()

    def _cells(self, brief: bool) -> dict[str, Cell]:
        cells = {
            "title": ("", self.title if len(self.title) <= 12 or not brief else self.title[:10] + ".."),
            "bar": ("", ""),
            "steps": ("", f"{self.step:>{len(str(self.total))}}/{self.total}"),
        }
        if self.loss is not None:
            cells["loss"] = ("loss", number(self.loss))
        if self.accuracy is not None:
            cells["accuracy"] = ("acc" if brief else "accuracy", percent(self.accuracy))
        if self.energy is not None:
            cells["energy"] = ("energy", number(self.energy))
        if self.rate is not None and self.left is not None:
            cells["rate"] = ("", count(self.rate) + ("/s" if brief else " samples/s"))
            cells["left"] = ("", clock(self.left) + ("" if brief else " left"))
        return cells


# ---------------------------------------------------------------------------------------------------------- text


def metric_cells(line: MetricsLine, total: int) -> list[Cell]:
    """Return the cells of a line of metrics, the most important first."""
    cells = [("step", f"{line.step:>{len(str(total))}}"), ("", f"{line.split:10}")]
    for key in ("loss", "discriminator_loss", "generator_loss"):
        if key in line.values:
            cells.append((key.removesuffix("_loss"), f"{number(line.values[key]):>7}"))
    if "accuracy" in line.values:
        cells.append(("accuracy", f"{percent(line.accuracy):>7}"))
    if line.energies:
        cells.append(("energy", f"{number(total_energy(line)):>7}"))
    if line.seconds is not None:
        cells.append(("", f"{clock(line.seconds):>7}"))
    return cells


def total_energy(line: MetricsLine) -> float | None:
    """Return the sum over the layers; None without layers, or if the energy of one is not finite."""
    energies = [energy for energy in line.energies.values() if energy is not None]
    return sum(energies) if energies and len(energies) == len(line.energies) else None


def count(value: float) -> str:
    if value < 9999.5:
        return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"
    return f"{value / 1e3:.1f}k" if value < 999950 else f"{value / 1e6:.1f}M"
