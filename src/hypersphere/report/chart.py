"""A chart: its picture, and the numbers that a page shows or turns."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from .._internal.safe_files import write_text

Point = Sequence[float]
TURN, TILT = 40.0, 12.0  # degrees, from where scenes are seen: no dot of a sphere hides another


@dataclass(frozen=True)
class Line:
    """A named line: its points, unless empty the spread of y at each, what x is, and its panel if there are several."""

    name: str
    x: list[float]
    y: list[float]
    spread: list[float]
    xlabel: str = ""
    panel: str = ""


@dataclass(frozen=True)
class Grid:
    """Values of a contour plot: values[i][j] at (x[i], y[j]), drawn in a square of the picture."""

    left: float
    top: float
    size: float
    x: Sequence[float]
    y: Sequence[float]
    values: Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class Series:
    """Named dots or one line in space.

    Attributes:
        points: x, y, z of each.
        colour: its number in CLASSES.
        size: diameter of a dot, or width of the line, in pixels.
        is_shown: False: only once it is chosen in the legend.
        in_legend: False: it is switched with the series of its name before it.
        numbers: of the points, if they are not 0, 1, 2, ...
    """

    name: str
    points: Sequence[Point]
    colour: int
    size: float = 6.0
    is_line: bool = False
    is_shown: bool = True
    in_legend: bool = True
    numbers: Sequence[int] = ()


@dataclass(frozen=True)
class Surface:
    """A function over a grid: values[i][j] at (x[i], y[j]) and its place in space; colours of the cells.

    None: a value that is not finite, and the cells around it.
    """

    x: Sequence[float]
    y: Sequence[float]
    values: Sequence[Sequence[float | None]]
    points: Sequence[Sequence[Point]]
    colours: Sequence[Sequence[str | None]]


@dataclass(frozen=True)
class Scene:
    """What is drawn within the unit sphere.

    Attributes:
        has_sphere: draw the sphere itself; otherwise three axes through its centre.
        labels: places and their texts.
        turn, tilt: from where it is seen, in degrees; a negative tilt is from above.
    """

    series: Sequence[Series] = ()
    has_sphere: bool = False
    surface: Surface | None = None
    labels: Sequence[tuple[Point, str]] = ()
    turn: float = TURN
    tilt: float = TILT


@dataclass(frozen=True)
class Chart:
    """A picture, and the numbers that a page shows when the pointer is on it.

    Attributes:
        svg: the picture; notebooks show it.
        lines: of its line charts, in the order in which they are drawn.
        grids: of its contour plots.
        scene: drawn by a page instead of the picture, so that it can be turned.
    """

    svg: str
    lines: Sequence[Line] = ()
    grids: Sequence[Grid] = ()
    scene: Scene | None = None

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file."""
        write_text(path, self.svg)

    def _repr_svg_(self) -> str:
        return self.svg
