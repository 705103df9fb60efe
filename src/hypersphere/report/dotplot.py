"""Dot plots as SVG: one line for each row, a filled dot with its spread and a hollow one to compare with."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence

from .svg import EDGE, LABEL, PALETTE, TICK, TITLE, data_range, finish, text_line, text_width, ticks

LINE = 22  # height of a row
FAR = 20  # times the median: dots beyond are a number at the edge, so that the others can be told apart
Dot = tuple[str, float | None, float | None, float | None]


def dot_plot(
    rows: Sequence[Dot],
    path: str | os.PathLike[str] | None = None,
    *,
    names: tuple[str, str] = ("paper", "measured"),
    title: str = "",
    xlabel: str = "",
    width: float = 720,
) -> str:
    """Draw one line for each row with up to two dots, and return the SVG.

    Args:
        rows: (label, hollow dot, filled dot, spread of the filled dot); None where there is none.
        path: a file to write the picture to as well.
        names: of the hollow and the filled dots, in the legend.

    Example:
        >>> svg = dot_plot([("cosine", 1.0, 1.2, 0.1), ("linear", None, 0.9, None)], xlabel="points")
        >>> svg.startswith("<svg") and ">cosine</text>" in svg
        True
    """
    if not rows:
        raise ValueError("rows must have at least one (label, hollow, filled, spread), got none")
    sizes = [abs(dot) for _, hollow, filled, _ in rows for dot in (hollow, filled) if dot]
    limit = FAR * statistics.median(sizes) if sizes else math.inf
    reach = [0.0]
    for _, hollow, filled, spread in rows:
        reach += [hollow] if hollow is not None and abs(hollow) <= limit else []
        near = filled is not None and abs(filled) <= limit
        reach += [filled - (spread or 0), filled + (spread or 0)] if filled is not None and near else []
    low, high = data_range(reach, margin=0.06)
    left = EDGE + max(text_width(label, TICK) for label, *_ in rows) + 10
    room = width - left - 2 * EDGE
    top = EDGE + (TITLE + 14 if title else 0)
    bottom = top + LINE * len(rows)
    height = bottom + TICK + 12 + (LABEL + 10 if xlabel else 0) + LINE + EDGE

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * room

    blue, orange = PALETTE[0], PALETTE[1]
    parts = [
        text_line(title, left, EDGE + TITLE * 0.8, TITLE, room=room, more='font-weight="600"'),
    ]
    for number, label in ticks(low, high, wanted=room / 90):
        colour = "#888" if abs(number) < 1e-12 * (high - low) else "#e4e4e4"
        parts.append(f'<path d="M{x(number):.1f} {top:.1f}V{bottom:.1f}" stroke="{colour}"/>')
        parts.append(text_line(label, x(number), bottom + TICK + 4, TICK, anchor="middle"))
    for i, (label, hollow, filled, spread) in enumerate(rows):
        y = top + LINE * (i + 0.5)
        parts.append(text_line(label, left - 8, y + TICK * 0.35, TICK, anchor="end"))
        if filled is not None and abs(filled) > limit:
            arrow, place, anchor = ("→", left + room, "end") if filled > 0 else ("←", left, "start")
            more = f'fill="{blue}"'
            parts.append(text_line(f"{filled:.4g} {arrow}", place, y + TICK * 0.35, TICK, anchor=anchor, more=more))
        elif filled is not None:
            if spread:
                ends = f"M{x(filled - spread):.1f} {y:.1f}H{x(filled + spread):.1f}"
                parts.append(f'<path d="{ends}" stroke="{blue}" stroke-width="2"/>')
            parts.append(f'<circle cx="{x(filled):.1f}" cy="{y:.1f}" r="4.5" fill="{blue}"/>')
        if hollow is not None and abs(hollow) <= limit:
            parts.append(_hollow(x(hollow), y, orange))
    below = bottom + TICK + 12
    if xlabel:
        parts.append(text_line(xlabel, left + room / 2, below + LABEL, LABEL, anchor="middle", room=room))
        below += LABEL + 10
    y, second = below + LINE / 2, left + text_width(names[1], LABEL) + 50
    parts += [f'<circle cx="{left + 6:.1f}" cy="{y:.1f}" r="4.5" fill="{blue}"/>', _hollow(second, y, orange)]
    parts += [
        text_line(names[1], left + 18, y + LABEL * 0.35, LABEL),
        text_line(names[0], second + 12, y + LABEL * 0.35, LABEL),
    ]
    return finish(parts, title or xlabel, width, height, path)


def _hollow(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="none" stroke="{colour}" stroke-width="2"/>'
