"""Charts of one line for each row: dots of two kinds with their spread, or bars."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from .svg import (
    AXIS,
    EDGE,
    GRID,
    LABEL,
    PALETTE,
    TICK,
    TITLE,
    Chart,
    data_range,
    document,
    escape,
    legend_key,
    log_ticks,
    shorten,
    text_line,
    text_width,
    ticks,
)

LINE = 22  # height of a row
FAR = 20  # times the median: outliers are printed as numbers at the edge
LONGEST = 30  # letters of a row's label in a chart of bars
Dot = tuple[str, float | None, float | None, float | None]


def dot_plot(
    rows: Sequence[Dot],
    *,
    names: tuple[str, str] = ("paper", "measured"),
    title: str = "",
    xlabel: str = "",
    width: float = 720,
) -> Chart:
    """Draw one line for each row with up to two dots.

    Args:
        rows: (label, hollow dot, filled dot, spread of the filled dot); None where there is none.
        names: of the hollow and the filled dots, in the legend.

    Example:
        >>> chart = dot_plot([("cosine", 1.0, 1.2, 0.1), ("linear", None, 0.9, None)], xlabel="points")
        >>> chart.svg.startswith("<svg") and ">cosine</text>" in chart.svg
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
        colour = AXIS if abs(number) < 1e-12 * (high - low) else GRID
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
    return Chart(document(parts, title or xlabel, width, height))


def _hollow(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="none" stroke="{colour}" stroke-width="2"/>'


def bar_chart(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    title: str = "",
    xlabel: str = "",
    xlim: tuple[float, float] | None = None,
    log: bool = False,
    width: float = 500,
) -> Chart:
    """Draw a row for each label with a bar from 0, or with dots if there are several series or the axis is logarithmic.

    Args:
        labels: of the rows; long ones are shortened, and whole where the pointer rests.
        series: name → a number for each row, None where there is none.
        xlim: (low, high) of the numbers; None: from 0, or on a logarithmic axis of the numbers.

    Example:
        >>> bar_chart(["a", "b"], {"accuracy": [0.5, None]}).svg.count("<rect")  # the page, and one bar
        2
    """
    numbers = [value for values in series.values() for value in values if value is not None]
    if log:
        numbers = [math.log10(value) for value in numbers if value > 0]
    low, high = xlim or data_range([*numbers, *([] if log and numbers else [0.0])], margin=0.06)
    low = low if xlim or log or min(numbers, default=0.0) < 0 else 0.0
    shown = [shorten(label, LONGEST) for label in labels]
    top = EDGE + (TITLE + 14 if title else 0)
    left = EDGE + max((text_width(label, TICK) for label in shown), default=0.0) + 10
    room, bottom = width - left - 2 * EDGE, top + LINE * len(labels)
    names = list(series) if len(series) > 1 else []
    below = bottom + TICK + 12 + (LABEL + 10 if xlabel else 0)

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * room

    parts = [text_line(title, EDGE, EDGE + TITLE * 0.8, TITLE, room=width - 2 * EDGE, more='font-weight="600"')]
    for number, label in (log_ticks if log else ticks)(low, high, wanted=room / 90):
        parts.append(f'<path d="M{x(number):.1f} {top:.1f}V{bottom:.1f}" stroke="{GRID}"/>')
        parts.append(text_line(label, x(number), bottom + TICK + 4, TICK, anchor="middle"))
    for i, label in enumerate(shown):
        parts.append(text_line(label, left - 8, top + LINE * (i + 0.5) + TICK * 0.35, TICK, anchor="end"))
    for k, (name, values) in enumerate(series.items()):
        colour = PALETTE[k % len(PALETTE)]
        parts.append(f'<g data-line="{k}">')
        for i, value in enumerate(values):
            if value is None or (log and value <= 0):
                continue
            hint = f"<title>{escape(f'{labels[i]}: {value:.4g}' + (f', {name}' if names else ''))}</title>"
            y, end = top + LINE * (i + 0.5), x(math.log10(value) if log else value)
            if names or log:
                parts.append(f'<circle cx="{end:.1f}" cy="{y:.1f}" r="5" fill="{colour}">{hint}</circle>')
            else:
                start, size = min(x(0.0), end), abs(end - x(0.0))
                place = f'x="{start:.1f}" y="{y - LINE * 0.36:.1f}" width="{size:.1f}" height="{LINE * 0.72:.1f}"'
                parts.append(f'<rect {place} fill="{colour}">{hint}</rect>')
        parts.append("</g>")
    parts.append(text_line(xlabel, left + room / 2, bottom + TICK + 12 + LABEL, LABEL, anchor="middle", room=room))
    for k, name in enumerate(names):
        y = below + LINE * (k + 0.5)
        parts.append(legend_key(k, name, PALETTE[k % len(PALETTE)], left + 6, y, room - 18))
    return Chart(document(parts, title or xlabel, width, below + LINE * len(names) + EDGE))
