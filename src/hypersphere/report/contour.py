"""Contour plots as SVG: filled bands between levels, side by side, each with its key."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .chart import Chart, Grid
from .svg import AXIS, EDGE, LABEL, TICK, TITLE, document, text_line, ticks

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
    *,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    size: float = 300,
) -> Chart:
    """Draw functions on a grid as filled contours, side by side.

    Args:
        panels: (name, values, levels): values[i][j] at (x[i], y[j]), infinite ones are as the largest; levels: the
            borders of the bands, in order, or None for ten bands over the values.
        x, y: coordinates of the grid, in order.
        size: of each plot, in pixels.
    """
    if not panels or len(x) < 2 or len(y) < 2:
        raise ValueError(f"expected panels on a grid of at least 2 x 2, got {len(panels)} on {len(x)} x {len(y)}")
    left, top = EDGE + (LABEL + 10 if ylabel else 0) + 34, EDGE + (TITLE + 14 if title else 0) + LABEL + 8
    step = left + size + KEY
    width, height = step * len(panels), top + size + TICK + 12 + (LABEL + 10 if xlabel else 0) + EDGE
    parts = [
        text_line(title, left, EDGE + TITLE * 0.8, TITLE, room=width - left - EDGE, more='font-weight="600"'),
    ]
    grids = []
    for i, (name, values, borders) in enumerate(panels):
        if len(values) != len(x) or any(len(row) != len(y) for row in values):
            raise ValueError(f"values of {name!r} must be {len(x)} rows of {len(y)} numbers")
        at, seen = i * step + left, [value for row in values for value in row if math.isfinite(value)]
        levels = list(borders) if borders is not None else spread_levels(seen)
        worst = max(seen, default=0.0)
        shown = [[value if math.isfinite(value) else worst for value in row] for row in values]
        grids.append(Grid(at, top, size, x, y, [[v if math.isfinite(v) else None for v in row] for row in values]))
        across = [at + size * (place - x[0]) / (x[-1] - x[0]) for place in x]
        down = [top + size * (y[-1] - place) / (y[-1] - y[0]) for place in y]
        parts.append(text_line(name, at, top - 8, LABEL, room=size))
        parts += _bands(shown, across, down, levels)
        parts.append(f'<rect x="{at:g}" y="{top:g}" width="{size:g}" height="{size:g}" fill="none" stroke="{AXIS}"/>')
        parts += _axes(x, y, at, top, size)
        parts += _key(levels, at + size + 14, top, size)
        middle = top + size + TICK + 14 + LABEL
        parts.append(text_line(xlabel, at + size / 2, middle, LABEL, anchor="middle", room=size))
        turn = at - 34 - LABEL * 0.4, top + size / 2
        turned = f'transform="rotate(-90 {turn[0]:.2f} {turn[1]:.2f})"'
        parts.append(text_line(ylabel, *turn, LABEL, anchor="middle", room=size, more=turned))
    return Chart(document(parts, title or panels[0][0], width, height), grids=grids)


def is_wide(low: float, high: float) -> bool:
    """Return whether a scale from low to high is logarithmic."""
    return low > 0 and high > SPREAD * low


def spread_levels(values: Sequence[float]) -> list[float]:
    """Return the borders of ten bands over the values; in powers where they span much."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if is_wide(low, high):
        return [low * (high / low) ** (i / BANDS) for i in range(BANDS + 1)]
    return [low + (high - low) * i / BANDS for i in range(BANDS + 1)]


def colour_at(share: float) -> str:
    """Return the colour of a share in [0, 1], dark to bright."""
    place = min(max(share, 0.0), 1.0) * (len(COLOURS) - 1)
    below = min(int(place), len(COLOURS) - 2)
    mixed = [a + (b - a) * (place - below) for a, b in zip(COLOURS[below], COLOURS[below + 1], strict=True)]
    return "#" + "".join(f"{round(part):02x}" for part in mixed)


def _bands(values: Sequence[Sequence[float]], x: list[float], y: list[float], levels: list[float]) -> list[str]:
    """Draw every band over the ones below it: the region at or above its lower level. Then the lines between them."""
    corners = f"M{x[0]:.1f} {y[0]:.1f}H{x[-1]:.1f}V{y[-1]:.1f}H{x[0]:.1f}Z"
    parts = [f'<path d="{corners}" fill="{colour_at(0)}"/>']
    lines = []
    for k, level in enumerate(levels[1:-1], 1):
        region, line = _region(values, x, y, level)
        colour = colour_at(k / (len(levels) - 2))
        if region:  # the stroke hides the seams between cells
            parts.append(f'<path d="{region}" fill="{colour}" stroke="{colour}" stroke-width=".7"/>')
        if line:
            lines.append(f'<path d="{line}" fill="none" stroke="#fff" stroke-opacity=".55" stroke-width=".7"/>')
    return parts + lines


def _region(values: Sequence[Sequence[float]], x: list[float], y: list[float], level: float) -> tuple[str, str]:
    """Return the polygons where the function is at least `level`, and its contour there (marching squares)."""
    polygons, lines = [], []
    for i in range(len(x) - 1):
        begin = None  # of a run of cells that are inside
        for j in range(len(y) - 1):
            corners = [(x[a], y[b], values[a][b]) for a, b in ((i, j), (i + 1, j), (i + 1, j + 1), (i, j + 1))]
            inside = all(corner[2] >= level for corner in corners)
            if inside and begin is None:
                begin = j
            if begin is not None and (not inside or j == len(y) - 2):
                end = y[j + 1] if inside else y[j]
                polygons.append(f"M{x[i]:.1f} {y[begin]:.1f}H{x[i + 1]:.1f}V{end:.1f}H{x[i]:.1f}Z")
                begin = None
            if not inside:
                points, ends = _cut(corners, level)
                polygons += [_joined(points) + "Z"] if len(points) > 2 else []
                lines += [_joined(pair) for pair in ends]
    return "".join(polygons), "".join(lines)


Place = tuple[float, float]


def _cut(corners: list[Point], level: float) -> tuple[list[Place], list[tuple[Place, Place]]]:
    """Return the part of a cell that is at least `level`, and its borders inside the cell.

    Of a saddle, two opposite corners, the part is in one piece.
    """
    points: list[Place] = []
    leaves: list[Place] = []
    enters: list[Place] = []
    for a, b in zip(corners, [*corners[1:], corners[0]], strict=True):
        if a[2] >= level:
            points.append(a[:2])
        if (a[2] >= level) != (b[2] >= level):
            share = (level - a[2]) / (b[2] - a[2])
            points.append((a[0] + share * (b[0] - a[0]), a[1] + share * (b[1] - a[1])))
            (leaves if a[2] >= level else enters).append(points[-1])
    if corners[0][2] < level:  # the first entrance belongs to the last exit
        enters = [*enters[1:], *enters[:1]]
    return points, list(zip(leaves, enters, strict=True))


def _joined(points: Sequence[Place]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _axes(x: Sequence[float], y: Sequence[float], left: float, top: float, size: float) -> list[str]:
    parts = []
    for number, label in ticks(x[0], x[-1], wanted=size / 60):
        at = left + size * (number - x[0]) / (x[-1] - x[0])
        parts.append(f'<path d="M{at:.2f} {top + size:.2f}v5" stroke="{AXIS}"/>')
        parts.append(text_line(label, at, top + size + 6 + TICK, TICK, anchor="middle"))
    for number, label in ticks(y[0], y[-1], wanted=size / 60):
        at = top + size * (y[-1] - number) / (y[-1] - y[0])
        parts.append(f'<path d="M{left - 5:.2f} {at:.2f}h5" stroke="{AXIS}"/>')
        parts.append(text_line(label, left - 8, at + TICK * 0.35, TICK, anchor="end"))
    return parts


def _key(levels: list[float], left: float, top: float, size: float) -> list[str]:
    """Draw a bar of the bands' colours with the levels beside it."""
    bands = len(levels) - 1
    parts = []
    for k in range(bands):
        y = top + size * (bands - 1 - k) / bands
        colour = colour_at(k / max(1, bands - 1))
        parts.append(f'<rect x="{left:g}" y="{y:.2f}" width="16" height="{size / bands + 0.5:.2f}" fill="{colour}"/>')
    for k, level in enumerate(levels):
        y = top + size * (bands - k) / bands
        parts.append(text_line(f"{level:.3g}", left + 22, min(max(y + 4, top + 9), top + size), TICK - 1))
    return parts
