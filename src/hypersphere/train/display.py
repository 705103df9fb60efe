"""Show a training on stderr: a live bar on a terminal, plain lines elsewhere.

A training step only stores its numbers: a thread of its own draws the bar a few times a second.
"""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from .._internal import progress
from .._internal.progress import Cell, clock, joined
from .._internal.tables import number, percent
from .._internal.text import escaped
from .storage.metrics import MetricsLine

SILENCE = 10.0  # seconds after which a plain line is due


def make(title: str, total: int, start: int = 0, *, enabled: bool = True) -> Display:
    """Make the display of a training of `total` steps that begins after step `start`; use it in a `with`.

    Args:
        title: what is trained, in a few words.
        enabled: False: nothing is shown.
    """
    if not enabled:
        return Display(title, total, start)
    console = progress.terminal()
    return Plain(title, total, start, sys.stderr) if console is None else Bar(title, total, start, console)


class Display:
    """Keep the last numbers of a training and show nothing; subclasses show them.

    `rate` is in samples per second of training, without evaluations, of the last line of metrics.
    """

    def __init__(self, title: str, total: int, start: int = 0) -> None:
        self.title, self.total, self.start, self.step = escaped(title), total, start, start
        self.loss: float | None = None
        self.accuracy: float | None = None
        self.energy: float | None = None
        self.rate: float | None = None
        self._begin = time.monotonic()

    @property
    def left(self) -> float | None:
        """Seconds left, evaluations included; None before the first step."""
        done = self.step - self.start
        return (self.total - self.step) * (time.monotonic() - self._begin) / done if done else None

    def advance(self, step: int, loss: float | None = None) -> None:
        """Record a training step."""
        self.step = step
        self.loss = self.loss if loss is None else loss

    def show(self, line: MetricsLine) -> None:
        """Show a line of metrics."""
        if line.split == "train":
            self.loss = line.values.get("loss", self.loss)
            self.rate = line.values.get("samples_per_second", self.rate)
        else:
            self.accuracy = line.values.get("accuracy", self.accuracy)
        if (energy := total_energy(line)) is not None:
            self.energy = energy
        if line.split != "train":
            self._print(joined(metric_cells(line, self.total)))

    def note(self, text: str) -> None:
        """Show one line of text."""
        self._print(escaped(text))

    def cells(self) -> list[Cell]:
        """Return the numbers of the moment, those that are known."""
        cells = {
            ("loss", number(self.loss)): self.loss,
            ("acc", percent(self.accuracy)): self.accuracy,
            ("energy", number(self.energy)): self.energy,
            ("", f"{self.rate or 0:.0f}/s"): self.rate,
            ("", clock(self.left or 0)): self.left,
        }
        return [cell for cell, value in cells.items() if value is not None]

    def _print(self, text: str) -> None:
        """Show one line that stays."""

    def close(self) -> None:
        """Remove the bar, at the end and after an error."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Plain(Display):
    """Print a line for every evaluation, and one every ten seconds in between."""

    def __init__(self, title: str, total: int, start: int, stream: TextIO | None) -> None:
        super().__init__(title, total, start)
        self._stream: TextIO | None = stream  # sys.stderr may be None
        self._print(f"{self.title}: {total} steps")

    def advance(self, step: int, loss: float | None = None) -> None:
        super().advance(step, loss)
        if time.monotonic() - self._spoke >= SILENCE:
            step_and_split = metric_cells(MetricsLine(step, "train"), self.total)
            self._print(joined([*step_and_split, *self.cells()]))

    def _print(self, text: str) -> None:
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
        self.bar = progress.LiveLine(console, self.title, lambda: (self.step, self.total, self.cells()))
        self.bar.print(f"{self.title}: {total} steps")

    # Not in __init__: an error before the `with` would leave the bar behind.
    def __enter__(self) -> Display:
        self.bar.start()
        return self

    def _print(self, text: str) -> None:
        self.bar.print(text)

    def close(self) -> None:
        self.bar.stop()


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
