"""What every figure is: a picture, and where there are some, its numbers and its turnable form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...report.svg import escape

PANEL, TOP = 240, 34  # pixels: a square panel with its margin, the title above


@dataclass(frozen=True)
class Drawing:
    """A drawn figure.

    Attributes:
        svg: the picture.
        rows: the numbers it shows, one mapping a row with the same keys; printed as a table.
        notes: sentences below the table.
        scenes: title → plotly's data and layout of a 3-D chart, which an HTML page shows instead of the picture.
    """

    svg: str
    rows: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    scenes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


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


def plain(svg: Callable[[], str]) -> Callable[[Sequence[Path]], Drawing]:
    """Make the drawing of a figure that takes nothing and has neither numbers nor a 3-D form."""
    return lambda _: Drawing(svg())


def open_svg(title: str, width: float, height: float, *, shown: bool = True, more: str = "") -> list[str]:
    """Begin a picture: a white page with its title. Texts are centred unless they say otherwise."""
    size = f'width="{width:g}" height="{height:g}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} viewBox="0 0 {width:g} {height:g}" '
        'font-family="system-ui, Helvetica, Arial, sans-serif" fill="#333" text-anchor="middle">',
        f'<title>{escape(title)}</title><rect {size}{more} fill="#fff"/>',
    ]
    if shown:
        parts.append(f'<text x="20" y="27" font-size="16" text-anchor="start" font-weight="600">{escape(title)}</text>')
    return parts


def close_svg(parts: Sequence[str]) -> str:
    return "\n".join([*parts, "</svg>"]) + "\n"


def at(x: float, y: float, svg: str) -> str:
    """Put a whole picture into another one."""
    return svg.replace("<svg ", f'<svg x="{x:g}" y="{y:g}" text-anchor="start" ', 1)
