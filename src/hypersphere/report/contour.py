"""Contour plots as SVG: filled bands between levels, side by side, each with its key."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from .._internal.safe_files import write_text
from .svg import EDGE, LABEL, TICK, TITLE, escape, text_line, ticks

#: dark to bright, distinct in grey and for all kinds of colour vision
COLOURS = ((68, 1, 84), (65, 68, 135), (42, 120, 142), (34, 168, 132), (122, 209, 81), (253, 231, 37))
KEY = 96  # pixels right of a plot for its key
BANDS = 10
SPREAD = 30  # highest level / lowest: from here on levels are powers of one number

Point = tuple[float, float, float]  # x, y and the value there
Panel = tuple[str, Sequence[Sequence[float]], Sequence[float] | None]


def contour_plot(
    panels: Sequence[Panel],
    x: Sequence[float],
    y: Sequence[float],
    path: str | os.PathLike[str] | None = None,
    *,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    size: float = 300,
) -> str:
    """Draw functions on a grid as filled contours, side by side, and return the SVG.

    Args:
        panels: (name, values, levels): values[i][j] at (x[i], y[j]), infinite ones are as the largest; levels: the
            borders of the bands, in order, or None for ten bands over the values.
        x, y: coordinates of the grid, in order.
        path: a file to write the picture to as well.
        size: of each plot, in pixels.

    Example:
        >>> svg = contour_plot([("sum", [[0.0, 1.0], [1.0, 2.0]], None)], [0, 1], [0, 1], title="plane")
        >>> svg.startswith("<svg") and ">plane</text>" in svg
        True
    """
    if not panels or len(x) < 2 or len(y) < 2:
        raise ValueError(f"expected panels on a grid of at least 2 x 2, got {len(panels)} on {len(x)} x {len(y)}")
    left, top = EDGE + (LABEL + 10 if ylabel else 0) + 34, EDGE + (TITLE + 14 if title else 0) + LABEL + 8
    step = left + size + KEY
    width, height = step * len(panels), top + size + TICK + 12 + (LABEL + 10 if xlabel else 0) + EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="system-ui, Helvetica, Arial, sans-serif" fill="#333">',
        f'<title>{escape(title or panels[0][0])}</title><rect width="{width:g}" height="{height:g}" fill="#fff"/>',
        text_line(title, left, EDGE + TITLE * 0.8, TITLE, room=width - left - EDGE, more='font-weight="600"'),
    ]
    for i, (name, values, given) in enumerate(panels):
        if len(values) != len(x) or any(len(row) != len(y) for row in values):
            raise ValueError(f"values of {name!r} must be {len(x)} rows of {len(y)} numbers")
        at, seen = i * step + left, [value for row in values for value in row if math.isfinite(value)]
        levels = list(given) if given is not None else _levels(seen)
        worst = max(seen, default=0.0)
        shown = [[value if math.isfinite(value) else worst for value in row] for row in values]
        across = [at + size * (each - x[0]) / (x[-1] - x[0]) for each in x]
        down = [top + size * (y[-1] - each) / (y[-1] - y[0]) for each in y]
        parts.append(text_line(name, at, top - 8, LABEL, room=size))
        parts += _bands(shown, across, down, levels)
        parts.append(f'<rect x="{at:g}" y="{top:g}" width="{size:g}" height="{size:g}" fill="none" stroke="#888"/>')
        parts += _axes(x, y, at, top, size)
        parts += _key(levels, at + size + 14, top, size)
        middle = top + size + TICK + 14 + LABEL
        parts.append(text_line(xlabel, at + size / 2, middle, LABEL, anchor="middle", room=size))
        turn = at - 34 - LABEL * 0.4, top + size / 2
        turned = f'transform="rotate(-90 {turn[0]:.2f} {turn[1]:.2f})"'
        parts.append(text_line(ylabel, *turn, LABEL, anchor="middle", room=size, more=turned))
    svg = "\n".join(part for part in (*parts, "</svg>") if part) + "\n"
    if path is not None:
        write_text(path, svg)
    return svg


def _levels(values: Sequence[float]) -> list[float]:
    """Return the borders of ten bands over the values; in powers where they span much."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low > 0 and high > SPREAD * low:
        return [low * (high / low) ** (i / BANDS) for i in range(BANDS + 1)]
    return [low + (high - low) * i / BANDS for i in range(BANDS + 1)]


def _colour(share: float) -> str:
    place = min(max(share, 0.0), 1.0) * (len(COLOURS) - 1)
    below = min(int(place), len(COLOURS) - 2)
    mixed = [a + (b - a) * (place - below) for a, b in zip(COLOURS[below], COLOURS[below + 1], strict=True)]
    return "#" + "".join(f"{round(each):02x}" for each in mixed)


def _bands(values: Sequence[Sequence[float]], x: list[float], y: list[float], levels: list[float]) -> list[str]:
    """Draw every band over the ones below it: the region at or above its lower level."""
    corners = f"M{x[0]:.1f} {y[0]:.1f}H{x[-1]:.1f}V{y[-1]:.1f}H{x[0]:.1f}Z"
    parts = [f'<path d="{corners}" fill="{_colour(0)}"/>']
    for k, level in enumerate(levels[1:-1], 1):
        path = "".join(_region(values, x, y, level))
        if path:
            colour = _colour(k / (len(levels) - 2))
            parts.append(f'<path d="{path}" fill="{colour}" stroke="{colour}" stroke-width=".7"/>')  # no seams
    for level in levels[1:-1]:
        line = "".join(_line(values, x, y, level))
        if line:
            parts.append(f'<path d="{line}" fill="none" stroke="#fff" stroke-opacity=".55" stroke-width=".7"/>')
    return parts


def _triangles(values: Sequence[Sequence[float]], x: list[float], y: list[float]) -> list[tuple[Point, Point, Point]]:
    """Split every cell of the grid into four triangles around its mean."""
    found = []
    for i in range(len(x) - 1):
        for j in range(len(y) - 1):
            corners = [(x[a], y[b], values[a][b]) for a, b in ((i, j), (i + 1, j), (i + 1, j + 1), (i, j + 1))]
            centre = (x[i] + x[i + 1]) / 2, (y[j] + y[j + 1]) / 2, sum(corner[2] for corner in corners) / 4
            found += [(corners[n], corners[(n + 1) % 4], centre) for n in range(4)]
    return found


def _cross(a: Point, b: Point, level: float) -> tuple[float, float]:
    share = (level - a[2]) / (b[2] - a[2])
    return a[0] + share * (b[0] - a[0]), a[1] + share * (b[1] - a[1])


def _region(values: Sequence[Sequence[float]], x: list[float], y: list[float], level: float) -> list[str]:
    """Return the polygons where the function is at least `level`: whole runs of cells, and parts of triangles."""
    polygons = []
    inside = [
        [
            min(values[i][j], values[i + 1][j], values[i][j + 1], values[i + 1][j + 1]) >= level
            for j in range(len(y) - 1)
        ]
        for i in range(len(x) - 1)
    ]
    for i, column in enumerate(inside):
        begin = None
        for j, whole in enumerate([*column, False]):
            if whole and begin is None:
                begin = j
            elif not whole and begin is not None:
                polygons.append(f"M{x[i]:.1f} {y[begin]:.1f}H{x[i + 1]:.1f}V{y[j]:.1f}H{x[i]:.1f}Z")
                begin = None
    for n, triangle in enumerate(_triangles(values, x, y)):
        cell, edges = n // 4, [(triangle[k], triangle[(k + 1) % 3]) for k in range(3)]
        if inside[cell // (len(y) - 1)][cell % (len(y) - 1)]:
            continue
        points: list[tuple[float, float]] = []
        for a, b in edges:
            points += [a[:2]] if a[2] >= level else []
            points += [_cross(a, b, level)] if (a[2] >= level) != (b[2] >= level) else []
        if len(points) > 2:
            polygons.append("M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in points) + "Z")
    return polygons


def _line(values: Sequence[Sequence[float]], x: list[float], y: list[float], level: float) -> list[str]:
    """Return the pieces of the contour at `level`."""
    pieces = []
    for triangle in _triangles(values, x, y):
        edges = [(triangle[k], triangle[(k + 1) % 3]) for k in range(3)]
        ends = [_cross(a, b, level) for a, b in edges if (a[2] >= level) != (b[2] >= level)]
        if len(ends) == 2:
            pieces.append(f"M{ends[0][0]:.1f} {ends[0][1]:.1f}L{ends[1][0]:.1f} {ends[1][1]:.1f}")
    return pieces


def _axes(x: Sequence[float], y: Sequence[float], left: float, top: float, size: float) -> list[str]:
    parts = []
    for number, label in ticks(x[0], x[-1], wanted=size / 60):
        at = left + size * (number - x[0]) / (x[-1] - x[0])
        parts.append(f'<path d="M{at:.2f} {top + size:.2f}v5" stroke="#888"/>')
        parts.append(text_line(label, at, top + size + 6 + TICK, TICK, anchor="middle"))
    for number, label in ticks(y[0], y[-1], wanted=size / 60):
        at = top + size * (y[-1] - number) / (y[-1] - y[0])
        parts.append(f'<path d="M{left - 5:.2f} {at:.2f}h5" stroke="#888"/>')
        parts.append(text_line(label, left - 8, at + TICK * 0.35, TICK, anchor="end"))
    return parts


def _key(levels: list[float], left: float, top: float, size: float) -> list[str]:
    """Draw a bar of the bands' colours with the levels beside it."""
    bands = len(levels) - 1
    parts = []
    for k in range(bands):
        y = top + size * (bands - 1 - k) / bands
        colour = _colour(k / max(1, bands - 1))
        parts.append(f'<rect x="{left:g}" y="{y:.2f}" width="16" height="{size / bands + 0.5:.2f}" fill="{colour}"/>')
    for k, level in enumerate(levels):
        y = top + size * (bands - k) / bands
        parts.append(text_line(f"{level:.3g}", left + 22, min(max(y + 4, top + 9), top + size), TICK - 1))
    return parts
