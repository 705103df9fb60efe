"""Line charts as SVG, with the standard library only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from .chart import Chart, Line
from .svg import (
    AXIS,
    EDGE,
    GRID,
    INK,
    LABEL,
    PALETTE,
    TICK,
    TITLE,
    data_range,
    document,
    escape,
    is_empty_range,
    log_ticks,
    number_ticks,
    text_line,
    text_width,
    ticks,
)

DASHES = ("", "7 4", "2 3", "9 3 2 3")  # one for each cycle of the palette

ROW = 20  # height of a row of the legend
SWATCH = 32  # width of the legend's line sample with the gap to its name
BLEED = 3  # pixels beyond the plot that are not clipped, so that lines along the border keep their width
SMALLEST_PLOT = 80  # pixels, in both directions
MOST_NAMED = 6  # marks with a text
CROSS = 13  # pixels between crosses side by side
MOST_TICKS = 8  # at the numbers of the lines themselves

Numbers = Iterable[float]
Series = Mapping[str, tuple[Numbers, Numbers] | tuple[Numbers, Numbers, Numbers]]


class Mark(NamedTuple):
    """A place on a line where something happened, such as the last point of a run that diverged.

    Attributes:
        line: the name of its line.
        what: such as "diverged"; empty: a cross without a text.
        x, y: the place; None instead of y: a line across the chart; inf: in a row above the plot, named after `what`.
    """

    line: str
    what: str
    x: float
    y: float | None


def line_chart(
    series: Series,
    *,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    xlim: tuple[float, float] | None = None,
    ylim: tuple[float, float] | None = None,
    log: str = "",
    legend: bool = True,
    filled: bool = False,
    marks: Sequence[Mark] = (),
    names: Sequence[str] = (),
    width: float = 720,
    height: float = 420,
    plot_height: float | None = None,
) -> Chart:
    """Draw named lines, each with an optional band around it.

    Args:
        series: name -> (x, y) or (x, y, spread), all of one length; the band covers y ± spread.
        title: above the plot. All texts are escaped.
        xlabel: below the plot.
        ylabel: left of the plot, rotated.
        xlim: (low, high); None: the range of the data.
        ylim: (low, high); None: the range of the data within xlim, with a margin.
        log: the axes that are logarithmic, "x", "y" or "xy"; their numbers must be positive; a band ends above 0.
        legend: below the plot; without it the lines have no names, as in a panel beside others.
        filled: fill the area below the lines.
        marks: what happened at points of lines; the first six have a text.
        names: lines of all charts that belong together; the place of a line's name sets its colour. (): in order.
        width: of the whole picture, in pixels.
        height: of the whole picture with the legend.
        plot_height: of the plot alone; the picture is as high as it needs.

    Example:
        >>> chart = line_chart({"cosine": ([0, 1, 2], [1.0, 0.54, -0.42], [0.1, 0.1, 0.2])}, xlabel="θ")
        >>> chart.svg.startswith("<svg") and ">cosine</text>" in chart.svg
        True
    """
    if log not in ("", "x", "y", "xy"):
        raise ValueError(f'log must be "", "x", "y" or "xy", got {log!r}')
    points = [_parse_line(name, values, xlabel) for name, values in series.items()]
    lines = _to_log(points, log, [*dict.fromkeys([*names, *series])])
    if not lines:
        raise ValueError("series must have at least one name -> (x, y), got none")

    above = [mark for mark in marks if mark.y == math.inf and ("x" not in log or mark.x > 0)]
    values = sorted({*(x for line in points for x in line.x), *(float(mark.x) for mark in above)})
    xs = _exponents("x", values) if "x" in log else values
    x_range = _check_range("xlim", xlim, "x" in log) if xlim is not None else data_range(xs, margin=0.0)
    seen = [y for line in lines for y in line.reach(*x_range)] or [y for line in lines for y in line.reach()]
    y_range = _check_range("ylim", ylim, "y" in log) if ylim is not None else data_range(seen, margin=0.05)

    # The plot gets the space that the texts leave.
    top = EDGE + (TITLE + 14 if title else 0) + (ROW if above else 0)
    room = height if plot_height is None else plot_height + 100
    y_ticks = log_ticks(*y_range, wanted=room / 40) if "y" in log else ticks(*y_range, wanted=room / 70)
    y_names = [label for _, label in y_ticks] + [mark.what for mark in above[:1]]
    left = EDGE + (LABEL + 10 if ylabel else 0) + max(map(_tick_width, y_names)) + 8
    plot_width = width - left - 2 * EDGE
    if plot_width < SMALLEST_PLOT:
        raise ValueError(f"width must be at least {math.ceil(width - plot_width + SMALLEST_PLOT)} here, got {width}")
    column = min(plot_width, SWATCH + max(text_width(line.name, LABEL) for line in lines) + 20)
    columns = max(1, int(plot_width // column))
    below = 8 + TICK + (LABEL + 10 if xlabel else 0) + 12
    around = top + below + (math.ceil(len(lines) / columns) * ROW if legend else 0) + EDGE / 2
    if plot_height is None:
        plot_height = height - around
    else:
        height = plot_height + around
    if plot_height < SMALLEST_PLOT:
        need = math.ceil(height - plot_height + SMALLEST_PLOT)
        raise ValueError(f"height must be at least {need} for {len(lines)} lines and their legend, got {height}")
    plot = _Plot(left, top, plot_width, plot_height, x_range, y_range)

    whole = all(x.is_integer() for x in xs) and x_range[1] - x_range[0] >= 1  # integers, such as epochs
    for spacing in (80, 110, 150):  # fewer ticks if the labels would touch
        wanted = plot_width / spacing
        if "x" in log:
            x_ticks = _few(plot, values) or log_ticks(*x_range, wanted=wanted)
        else:
            x_ticks = ticks(*x_range, wanted=wanted, smallest_step=1.0 if whole else 0.0)
        if sum(_tick_width(label) + 14 for _, label in x_ticks) < plot_width:
            break
    parts = [
        text_line(title, left, EDGE + TITLE * 0.8, TITLE, room=plot_width, more='font-weight="600"'),
        *_axes(plot, x_ticks, y_ticks, xlabel, ylabel),
        *_marks_above(plot, lines, above, log),
        *_curves(plot, lines, filled, _place_marks(plot, lines, [mark for mark in marks if mark.y != math.inf], log)),
        *(_legend(lines, left, plot.bottom + below, columns, column, room=plot_width - SWATCH) if legend else []),
    ]
    return Chart(document(parts, title or ", ".join(line.name for line in lines), width, height), points)


# Drawing


@dataclass(frozen=True)
class _Curve:
    """A line as it is drawn: logarithmic axes have exponents of ten."""

    name: str
    style: int
    points: list[tuple[float, float]]
    band: list[tuple[float, float]]  # along its upper edge and back along the lower; empty: none

    def reach(self, low: float = -math.inf, high: float = math.inf) -> list[float]:
        """Return every y of the line and its band with low <= x <= high."""
        return [y for x, y in [*self.points, *self.band] if low <= x <= high]


@dataclass(frozen=True)
class _Plot:
    """The rectangle of the plot in pixels, and its data ranges."""

    left: float
    top: float
    width: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def to_x(self, x: float) -> float:
        low, high = self.x_range
        return self.left + (x - low) / (high - low) * self.width

    def to_y(self, y: float) -> float:
        low, high = self.y_range
        return self.top + (high - y) / (high - low) * self.height

    def points(self, pairs: Iterable[tuple[float, float]]) -> str:
        # Renderers use float32: clamp a diverged loss of 1e30 far outside of ylim.
        places = ((self.to_x(x), self.to_y(y)) for x, y in pairs)
        return " ".join(f"{_clamp(to_x):.2f},{_clamp(to_y):.2f}" for to_x, to_y in places)


def _few(plot: _Plot, values: Sequence[float]) -> list[tuple[float, str]]:
    """Return ticks of a logarithmic axis at every x that lines have, if they are few and the labels do not touch."""
    found = number_ticks(values) if 3 <= len(values) <= MOST_TICKS else []
    shown = [(plot.to_x(x), _tick_width(label) / 2 + 4) for x, label in found]
    is_free = all(a + room <= b - more for (a, room), (b, more) in pairwise(shown))
    return found if is_free else []


def _axes(
    plot: _Plot, x_ticks: list[tuple[float, str]], y_ticks: list[tuple[float, str]], xlabel: str, ylabel: str
) -> list[str]:
    parts = []
    for y, label in y_ticks:
        at = plot.to_y(y)
        parts.append(f'<path d="M{plot.left:.2f} {at:.2f}H{plot.right:.2f}" stroke="{GRID}"/>')
        parts.append(text_line(label, plot.left - 8, at + TICK * 0.35, TICK, anchor="end"))
    for x, label in x_ticks:
        at = plot.to_x(x)
        parts.append(f'<path d="M{at:.2f} {plot.bottom:.2f}v5" stroke="{AXIS}"/>')
        parts.append(text_line(label, at, plot.bottom + 8 + TICK, TICK, anchor="middle"))
    parts.append(f'<path d="M{plot.left:.2f} {plot.bottom:.2f}H{plot.right:.2f}" stroke="{AXIS}"/>')
    middle = plot.left + plot.width / 2
    parts.append(text_line(xlabel, middle, plot.bottom + TICK + 14 + LABEL, LABEL, anchor="middle", room=plot.width))
    x, y = EDGE + LABEL * 0.8, plot.top + plot.height / 2
    turned = f'transform="rotate(-90 {x:.2f} {y:.2f})"'
    parts.append(text_line(ylabel, x, y, LABEL, anchor="middle", room=plot.height, more=turned))
    return parts


def _curves(plot: _Plot, lines: list[_Curve], filled: bool, marks: list[str]) -> list[str]:
    # An inner svg clips the plot. A clipPath would need an id that is unique in every page that embeds the chart.
    # page.js finds the lines by their titles, and the legend, a sample and a text for each line, behind this element.
    left, top = f"{plot.left - BLEED:.2f}", f"{plot.top - BLEED:.2f}"
    width, height = f"{plot.width + 2 * BLEED:.2f}", f"{plot.height + 2 * BLEED:.2f}"
    parts = [
        f'<svg x="{left}" y="{top}" width="{width}" height="{height}" '
        f'viewBox="{left} {top} {width} {height}" overflow="hidden">'
    ]
    for line in lines:  # bands first, so that none covers a line
        if line.band:
            colour, _ = _line_style(line.style)
            parts.append(f'<polygon points="{plot.points(line.band)}" fill="{colour}" fill-opacity="0.18"/>')
    for line in lines:
        colour, dash = _line_style(line.style)
        if len(line.points) == 1:
            x, y = line.points[0]
            at = f'cx="{plot.to_x(x):.2f}" cy="{plot.to_y(y):.2f}"'
            parts.append(f'<circle {at} r="4" fill="{colour}"><title>{escape(line.name)}</title></circle>')
        else:
            fill = f'"{colour}" fill-opacity="0.25"' if filled else '"none"'
            parts.append(
                f'<polyline points="{plot.points(line.points)}" fill={fill} stroke="{colour}" '
                f'stroke-width="2" stroke-linejoin="round"{dash}><title>{escape(line.name)}</title></polyline>'
            )
    return [*parts, *marks, "</svg>"]


def _place_marks(plot: _Plot, lines: list[_Curve], marks: Sequence[Mark], log: str) -> list[str]:
    """Draw a cross at the place of each mark, or a line across the chart where it has no value."""
    parts: list[str] = []
    for number, mark in enumerate(marks):
        if ("x" in log and mark.x <= 0) or ("y" in log and mark.y is not None and mark.y <= 0):
            continue
        colour, x, y = (
            _mark_colour(mark, lines),
            plot.to_x(math.log10(mark.x) if "x" in log else mark.x),
            plot.top + TICK,
        )
        if mark.y is None:
            parts.append(
                f'<path d="M{x:.2f} {plot.top:.2f}V{plot.bottom:.2f}" stroke="{colour}" stroke-dasharray="2 3"/>'
            )
        else:
            y = _clamp(plot.to_y(math.log10(mark.y) if "y" in log else mark.y))
            parts.append(_cross(x, y, colour))
        is_left = x <= plot.left + plot.width / 2
        place, anchor = (x + 8, "start") if is_left else (x - 8, "end")
        room = plot.right - place if is_left else place - plot.left
        text = f"{mark.line} {mark.what}" if mark.what and number < MOST_NAMED else ""
        y = min(max(y - 8, plot.top + TICK), plot.bottom - 4)
        parts.append(text_line(text, place, y, TICK, anchor=anchor, room=room))
    return parts


def _marks_above(plot: _Plot, lines: list[_Curve], marks: Sequence[Mark], log: str) -> list[str]:
    """Draw the row above the plot: crosses at the same x stand side by side."""
    if not marks:
        return []
    y = plot.top - ROW / 2
    parts = [f'<path d="M{plot.left:.2f} {y:.2f}H{plot.right:.2f}" stroke="{GRID}" stroke-dasharray="2 3"/>']
    parts.append(text_line(marks[0].what, plot.left - 8, y + TICK * 0.35, TICK, anchor="end"))
    for x in dict.fromkeys(mark.x for mark in marks):
        same = [mark for mark in marks if mark.x == x]
        for i, mark in enumerate(same):
            at = plot.to_x(math.log10(x) if "x" in log else x) + CROSS * (i - (len(same) - 1) / 2)
            hint = escape(f"{mark.line} {mark.what}, {x:g}")
            parts.append(f"<g>{_cross(at, y, _mark_colour(mark, lines))}<title>{hint}</title></g>")
    return parts


def _cross(x: float, y: float, colour: str) -> str:
    return f'<path d="M{x - 5:.2f} {y - 5:.2f}l10 10m0 -10l-10 10" stroke="{colour}" stroke-width="2"/>'


def _mark_colour(mark: Mark, lines: Sequence[_Curve]) -> str:
    return next((_line_style(line.style)[0] for line in lines if line.name == mark.line), INK)


def _tick_width(label: str) -> float:
    return text_width(label, TICK)


def _legend(lines: list[_Curve], left: float, top: float, columns: int, column: float, room: float) -> list[str]:
    parts = []
    for index, line in enumerate(lines):
        x = left + index % columns * column
        y = top + (index // columns + 0.5) * ROW
        colour, dash = _line_style(line.style)
        if len(line.points) == 1:
            parts.append(f'<circle cx="{x + 12:.2f}" cy="{y:.2f}" r="4" fill="{colour}"/>')
        else:
            parts.append(f'<path d="M{x:.2f} {y:.2f}h24" stroke="{colour}" stroke-width="2.5"{dash}/>')
        parts.append(text_line(line.name or " ", x + SWATCH, y + LABEL * 0.35, LABEL, room=room))
    return parts


def _clamp(pixels: float) -> float:
    return min(max(pixels, -1e5), 1e5)


def _line_style(index: int) -> tuple[str, str]:
    """Return the colour of a line and its dash attribute."""
    dash = DASHES[index // len(PALETTE) % len(DASHES)]
    return PALETTE[index % len(PALETTE)], f' stroke-dasharray="{dash}"' if dash else ""


# Numbers


def _parse_line(name: str, values: tuple[Numbers, ...], xlabel: str) -> Line:
    named = zip(("x", "y", "spread"), values, strict=False)
    parts = {part: _parse_floats(f"{part} of series[{name!r}]", numbers) for part, numbers in named}
    lengths = [len(part) for part in parts.values()]
    if min(lengths) == 0 or min(lengths) != max(lengths):
        raise ValueError(f"series[{name!r}] must have parts of one length, at least 1, got lengths {lengths}")
    return Line(name, parts["x"], parts["y"], parts.get("spread", []), xlabel)


def _parse_floats(argument: str, values: Numbers) -> list[float]:
    numbers = [float(value) for value in values]
    for index, number in enumerate(numbers):
        # Beyond 1e300 the difference of two numbers may overflow.
        if not abs(number) <= 1e300:
            raise ValueError(f"{argument} must hold finite numbers up to 1e300, got {number} at index {index}")
    return numbers


def _to_log(lines: Sequence[Line], log: str, names: Sequence[str]) -> list[_Curve]:
    """Replace the numbers of logarithmic axes by their exponents of ten; bands end at half the lowest y there."""
    curves = []
    floor = min((y for line in lines for y in line.y), default=1.0) / 2 if "y" in log else -math.inf
    for line in lines:
        edges = [[y + spread for y, spread in zip(line.y, line.spread, strict=False)]]
        edges += [[max(y - spread, floor) for y, spread in zip(line.y, line.spread, strict=False)]]
        x, y, high, low = (
            _exponents(f"{axis} of series[{line.name!r}]", numbers) if axis in log and numbers else numbers
            for axis, numbers in (("x", line.x), ("y", line.y), ("y", edges[0]), ("y", edges[1]))
        )
        band = [*zip(x, high, strict=False), *reversed([*zip(x, low, strict=False)])]
        curves.append(_Curve(line.name, names.index(line.name), [*zip(x, y, strict=True)], band))
    return curves


def _exponents(argument: str, numbers: list[float]) -> list[float]:
    if min(numbers) <= 0:
        raise ValueError(f"{argument} must be positive on a logarithmic axis, got {min(numbers)}")
    return [math.log10(number) for number in numbers]


def _check_range(argument: str, limits: tuple[float, float], log: bool = False) -> tuple[float, float]:
    numbers = _parse_floats(argument, limits)
    if log:
        numbers = _exponents(argument, numbers)
    if len(numbers) != 2 or is_empty_range(*numbers):
        raise ValueError(f"{argument} must be (low, high) with low < high, got {limits!r}")
    return numbers[0], numbers[1]
