"""What every figure is: a picture, and where there are some, its numbers and its panels that can be turned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...report import Chart

PANEL, TOP = 240, 34  # pixels: a square panel with its margin, the title above


@dataclass(frozen=True)
class Drawing:
    """A drawn figure.

    Attributes:
        chart: the picture.
        rows: the numbers it shows, one mapping a row with the same keys; printed as a table.
        notes: sentences below the table.
        panels: scenes that an HTML page shows instead of the picture.
    """

    chart: Chart
    rows: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    panels: Sequence[Chart] = ()

    @property
    def svg(self) -> str:
        return self.chart.svg


@dataclass(frozen=True)
class Figure:
    """An entry of the table of figures.

    Attributes:
        draw: takes the inputs of the command line.
        about: what is drawn, one line.
        source: paper and number.
        takes: the inputs as in a usage line; "" if there are none.
        inputs: fewest and most of them; None: any number.
    """

    draw: Callable[[Sequence[Path]], Drawing]
    about: str
    source: str
    takes: str = ""
    inputs: tuple[int, int | None] = (0, 0)

    def check(self, name: str, inputs: Sequence[str]) -> None:
        """Raise ValueError for a wrong number of inputs."""
        fewest, most = self.inputs
        if len(inputs) < fewest or (most is not None and len(inputs) > most):
            usage = f"hypersphere figure {name} {self.takes}".rstrip()
            raise ValueError(f"{name} takes {self.takes or 'no input'}: `{usage}`; got {len(inputs)}")

    @property
    def summary(self) -> str:
        """One line for lists."""
        return f"{self.about} ({self.source}){f'; takes {self.takes}' if self.takes else ''}"


def plain(draw: Callable[[], Chart]) -> Callable[[Sequence[Path]], Drawing]:
    """Make the drawing of a figure that takes nothing and has neither numbers nor panels."""
    return lambda _: Drawing(draw())
