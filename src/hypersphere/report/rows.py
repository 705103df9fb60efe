"""Charts of one line for each row: dots of two kinds with their spread, or bars."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from .chart import Chart
from .svg import (
    AXIS,
    EDGE,
    GRID,
    LABEL,
    PALETTE,
    TICK,
    TITLE,
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
    axes = _Axes([label for label, *_ in rows], data_range(reach, margin=0.06), title, xlabel, width)
    blue, orange, x = PALETTE[0], PALETTE[1], axes.x
    parts = axes.numbers()
    for i, (_, hollow, filled, spread) in enumerate(rows):
        y = axes.y(i)
        parts.append(axes.label(i))
        if filled is not None and abs(filled) > limit:
            arrow, place, anchor = ("→", axes.left + axes.room, "end") if filled > 0 else ("←", axes.left, "start")
            text, more = f"{filled:.4g} {arrow}", f'fill="{blue}"'
            parts.append(text_line(text, place, y + TICK * 0.35, TICK, anchor=anchor, more=more))
        elif filled is not None:
            if spread:
                ends = f"M{x(filled - spread):.1f} {y:.1f}H{x(filled + spread):.1f}"
                parts.append(f'<path d="{ends}" stroke="{blue}" stroke-width="2"/>')
            parts.append(f'<circle cx="{x(filled):.1f}" cy="{y:.1f}" r="4.5" fill="{blue}"/>')
        if hollow is not None and abs(hollow) <= limit:
            parts.append(_hollow(x(hollow), y, orange))
    y, second = axes.below + LINE / 2, axes.left + text_width(names[1], LABEL) + 50
    parts += [
        axes.caption(),
        f'<circle cx="{axes.left + 6:.1f}" cy="{y:.1f}" r="4.5" fill="{blue}"/>',
        _hollow(second, y, orange),
        text_line(names[1], axes.left + 18, y + LABEL * 0.35, LABEL),
        text_line(names[0], second + 12, y + LABEL * 0.35, LABEL),
    ]
    return Chart(document(parts, title or xlabel, width, axes.below + LINE + EDGE))


class _Axes:
    """The frame of a chart of rows: their labels at the left, numbers below."""

    def __init__(
        self,
        labels: Sequence[str],
        limits: tuple[float, float],
        title: str,
        xlabel: str,
        width: float,
        log: bool = False,
    ) -> None:
        self.labels, self.title, self.xlabel, self.log = labels, title, xlabel, log
        self.low, self.high = limits
        self.left = EDGE + max((text_width(label, TICK) for label in labels), default=0.0) + 10
        self.room = width - self.left - 2 * EDGE
        self.top = EDGE + (TITLE + 14 if title else 0)
        self.bottom = self.top + LINE * len(labels)
        self.below = self.bottom + TICK + 12 + (LABEL + 10 if xlabel else 0)

    def x(self, value: float) -> float:
        return self.left + (value - self.low) / (self.high - self.low) * self.room

    def y(self, row: int) -> float:
        return self.top + LINE * (row + 0.5)

    def numbers(self) -> list[str]:
        """Draw the title and the ticks."""
        parts = [text_line(self.title, self.left, EDGE + TITLE * 0.8, TITLE, room=self.room, more='font-weight="600"')]
        for number, label in (log_ticks if self.log else ticks)(self.low, self.high, wanted=self.room / 90):
            colour = AXIS if not self.log and abs(number) < 1e-12 * (self.high - self.low) else GRID
            parts.append(f'<path d="M{self.x(number):.1f} {self.top:.1f}V{self.bottom:.1f}" stroke="{colour}"/>')
            parts.append(text_line(label, self.x(number), self.bottom + TICK + 4, TICK, anchor="middle"))
        return parts

    def label(self, row: int) -> str:
        return text_line(self.labels[row], self.left - 8, self.y(row) + TICK * 0.35, TICK, anchor="end")

    def caption(self) -> str:
        """Draw what the numbers are."""
        middle, y = self.left + self.room / 2, self.bottom + TICK + 12 + LABEL
        return text_line(self.xlabel, middle, y, LABEL, anchor="middle", room=self.room)


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
    axes = _Axes([shorten(label, LONGEST) for label in labels], (low, high), title, xlabel, width, log)
    names = list(series) if len(series) > 1 else []
    parts = [*axes.numbers(), *(axes.label(i) for i in range(len(labels)))]
    for k, (name, values) in enumerate(series.items()):
        colour = PALETTE[k % len(PALETTE)]
        parts.append(f'<g data-line="{k}">')
        for i, value in enumerate(values):
            if value is None or (log and value <= 0):
                continue
            hint = f"<title>{escape(f'{labels[i]}: {value:.4g}' + (f', {name}' if names else ''))}</title>"
            y, end = axes.y(i), axes.x(math.log10(value) if log else value)
            if names or log:
                parts.append(f'<circle cx="{end:.1f}" cy="{y:.1f}" r="5" fill="{colour}">{hint}</circle>')
            else:
                start, size = min(axes.x(0.0), end), abs(end - axes.x(0.0))
                place = f'x="{start:.1f}" y="{y - LINE * 0.36:.1f}" width="{size:.1f}" height="{LINE * 0.72:.1f}"'
                parts.append(f'<rect {place} fill="{colour}">{hint}</rect>')
        parts.append("</g>")
    parts.append(axes.caption())
    for k, name in enumerate(names):
        y = axes.below + LINE * (k + 0.5)
        parts.append(legend_key(k, name, PALETTE[k % len(PALETTE)], axes.left + 6, y, axes.room - 18))
    return Chart(document(parts, title or xlabel, width, axes.below + LINE * len(names) + EDGE))
