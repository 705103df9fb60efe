"""Line charts as SVG, with the standard library only."""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .svg import (
    EDGE,
    LABEL,
    PALETTE,
    TICK,
    TITLE,
    data_range,
    escape,
    finish,
    is_empty_range,
    log_ticks,
    text_line,
    text_width,
    ticks,
)

DASHES = ("", "7 4", "2 3", "9 3 2 3")  # one for each cycle of the palette

ROW = 20  # height of a row of the legend
SWATCH = 32  # width of the legend's line sample with the gap to its name
BLEED = 3  # pixels beyond the plot that are not clipped, so that lines along the border keep their width
SMALLEST_PLOT = 80  # pixels, in both directions

Numbers = Iterable[float]
Series = Mapping[str, tuple[Numbers, Numbers] | tuple[Numbers, Numbers, Numbers]]


def line_chart(
    series: Series,
    path: str | os.PathLike[str] | None = None,
    *,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    xlim: tuple[float, float] | None = None,
    ylim: tuple[float, float] | None = None,
    log: str = "",
    legend: bool = True,
    width: float = 720,
    height: float = 420,
) -> str:
    """Draw named lines, each with an optional band around it, and return the SVG.

    Args:
        series: name -> (x, y) or (x, y, spread), all of one length; the band covers y ± spread.
        path: a file to write the picture to as well.
        title: above the plot. All texts are escaped.
        xlabel: below the plot.
        ylabel: left of the plot, rotated.
        xlim: (low, high); None: the range of the data.
        ylim: (low, high); None: the range of the data within xlim, with a margin.
        log: the axes that are logarithmic, "x", "y" or "xy"; their numbers must be positive, with y there is no band.
        legend: below the plot; without it the lines have no names, as in a panel beside others.
        width: of the whole picture, in pixels.
        height: of the whole picture with the legend.

    Example:
        >>> svg = line_chart({"cosine": ([0, 1, 2], [1.0, 0.54, -0.42], [0.1, 0.1, 0.2])}, xlabel="θ")
        >>> svg.startswith("<svg") and ">cosine</text>" in svg
        True
    """
    if log not in ("", "x", "y", "xy"):
        raise ValueError(f'log must be "", "x", "y" or "xy", got {log!r}')
    lines = [_to_log(_parse_line(name, values), log) for name, values in series.items()]
    if not lines:
        raise ValueError("series must have at least one name -> (x, y), got none")
    for argument, size in (("width", width), ("height", height)):
        if not (math.isfinite(size) and size > 0):
            raise ValueError(f"{argument} must be a positive number of pixels, got {size}")

    xs = [x for line in lines for x in line.x]
    x_range = _check_range("xlim", xlim, "x" in log) if xlim is not None else data_range(xs, margin=0.0)
    seen = [y for line in lines for y in line.reach(*x_range)] or [y for line in lines for y in line.reach()]
    y_range = _check_range("ylim", ylim, "y" in log) if ylim is not None else data_range(seen, margin=0.05)

    # The plot gets the space that the texts leave.
    top = EDGE + (TITLE + 14 if title else 0)
    y_ticks = log_ticks(*y_range, wanted=height / 40) if "y" in log else ticks(*y_range, wanted=height / 70)
    left = EDGE + (LABEL + 10 if ylabel else 0) + max(text_width(label, TICK) for _, label in y_ticks) + 8
    plot_width = width - left - 2 * EDGE
    if plot_width < SMALLEST_PLOT:
        raise ValueError(f"width must be at least {math.ceil(width - plot_width + SMALLEST_PLOT)} here, got {width}")
    column = SWATCH + max(text_width(line.name, LABEL) for line in lines) + 20
    columns = max(1, int(plot_width // column))
    below = 8 + TICK + (LABEL + 10 if xlabel else 0) + 12
    plot_height = height - top - below - (math.ceil(len(lines) / columns) * ROW if legend else 0) - EDGE / 2
    if plot_height < SMALLEST_PLOT:
        need = math.ceil(height - plot_height + SMALLEST_PLOT)
        raise ValueError(f"height must be at least {need} for {len(lines)} lines and their legend, got {height}")
    plot = _Plot(left, top, plot_width, plot_height, x_range, y_range)

    whole = all(x.is_integer() for x in xs) and x_range[1] - x_range[0] >= 1  # integers, such as epochs
    for spacing in (80, 110, 150):  # fewer ticks if the labels would touch
        wanted = plot_width / spacing
        if "x" in log:
            x_ticks = log_ticks(*x_range, wanted=wanted)
        else:
            x_ticks = ticks(*x_range, wanted=wanted, smallest_step=1.0 if whole else 0.0)
        if sum(text_width(label, TICK) + 14 for _, label in x_ticks) < plot_width:
            break
    parts = [
        text_line(title, left, EDGE + TITLE * 0.8, TITLE, room=plot_width / 1.12, more='font-weight="600"'),
        *_axes(plot, x_ticks, y_ticks, xlabel, ylabel),
        *_curves(plot, lines),
        *(_legend(lines, left, plot.bottom + below, columns, column, room=plot_width - SWATCH) if legend else []),
    ]
    return finish(parts, title or ", ".join(line.name for line in lines), width, height, path)


# Drawing


@dataclass(frozen=True)
class _Line:
    name: str
    x: list[float]
    y: list[float]
    spread: list[float]  # empty: no band

    def band(self) -> list[tuple[float, float]]:
        """Return the corners of the band, along its upper edge and back along the lower."""
        triples = list(zip(self.x, self.y, self.spread, strict=True)) if self.spread else []
        return [(x, y + s) for x, y, s in triples] + [(x, y - s) for x, y, s in reversed(triples)]

    def reach(self, low: float = -math.inf, high: float = math.inf) -> list[float]:
        """Return every y of the line and its band with low <= x <= high."""
        return [y for x, y in [*zip(self.x, self.y, strict=True), *self.band()] if low <= x <= high]


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


def _axes(
    plot: _Plot, x_ticks: list[tuple[float, str]], y_ticks: list[tuple[float, str]], xlabel: str, ylabel: str
) -> list[str]:
    parts = []
    for y, label in y_ticks:
        at = plot.to_y(y)
        parts.append(f'<path d="M{plot.left:.2f} {at:.2f}H{plot.right:.2f}" stroke="#e4e4e4"/>')
        parts.append(text_line(label, plot.left - 8, at + TICK * 0.35, TICK, anchor="end"))
    for x, label in x_ticks:
        at = plot.to_x(x)
        parts.append(f'<path d="M{at:.2f} {plot.bottom:.2f}v5" stroke="#888"/>')
        parts.append(text_line(label, at, plot.bottom + 8 + TICK, TICK, anchor="middle"))
    parts.append(f'<path d="M{plot.left:.2f} {plot.bottom:.2f}H{plot.right:.2f}" stroke="#888"/>')
    middle = plot.left + plot.width / 2
    parts.append(text_line(xlabel, middle, plot.bottom + TICK + 14 + LABEL, LABEL, anchor="middle", room=plot.width))
    x, y = EDGE + LABEL * 0.8, plot.top + plot.height / 2
    turned = f'transform="rotate(-90 {x:.2f} {y:.2f})"'
    parts.append(text_line(ylabel, x, y, LABEL, anchor="middle", room=plot.height, more=turned))
    return parts


def _curves(plot: _Plot, lines: list[_Line]) -> list[str]:
    # An inner svg clips the plot. A clipPath would need an id that is unique in every page that embeds the chart.
    left, top = f"{plot.left - BLEED:.2f}", f"{plot.top - BLEED:.2f}"
    width, height = f"{plot.width + 2 * BLEED:.2f}", f"{plot.height + 2 * BLEED:.2f}"
    parts = [
        f'<svg x="{left}" y="{top}" width="{width}" height="{height}" '
        f'viewBox="{left} {top} {width} {height}" overflow="hidden">'
    ]
    for index, line in enumerate(lines):  # bands first, so that none covers a line
        if line.spread:
            colour, _ = _line_style(index)
            parts.append(f'<polygon points="{plot.points(line.band())}" fill="{colour}" fill-opacity="0.18"/>')
    for index, line in enumerate(lines):
        colour, dash = _line_style(index)
        if len(line.x) == 1:
            at = f'cx="{plot.to_x(line.x[0]):.2f}" cy="{plot.to_y(line.y[0]):.2f}"'
            parts.append(f'<circle {at} r="4" fill="{colour}"><title>{escape(line.name)}</title></circle>')
        else:
            parts.append(
                f'<polyline points="{plot.points(zip(line.x, line.y, strict=True))}" fill="none" stroke="{colour}" '
                f'stroke-width="2" stroke-linejoin="round"{dash}><title>{escape(line.name)}</title></polyline>'
            )
    return [*parts, "</svg>"]


def _legend(lines: list[_Line], left: float, top: float, columns: int, column: float, room: float) -> list[str]:
    parts = []
    for index, line in enumerate(lines):
        x = left + index % columns * column
        y = top + (index // columns + 0.5) * ROW
        colour, dash = _line_style(index)
        if len(line.x) == 1:
            parts.append(f'<circle cx="{x + 12:.2f}" cy="{y:.2f}" r="4" fill="{colour}"/>')
        else:
            parts.append(f'<path d="M{x:.2f} {y:.2f}h24" stroke="{colour}" stroke-width="2.5"{dash}/>')
        parts.append(text_line(line.name, x + SWATCH, y + LABEL * 0.35, LABEL, room=room))
    return parts


def _clamp(pixels: float) -> float:
    return min(max(pixels, -1e5), 1e5)


def _line_style(index: int) -> tuple[str, str]:
    """Return the colour of a line and its dash attribute."""
    dash = DASHES[index // len(PALETTE) % len(DASHES)]
    return PALETTE[index % len(PALETTE)], f' stroke-dasharray="{dash}"' if dash else ""


# Numbers


def _parse_line(name: str, values: tuple[Numbers, ...]) -> _Line:
    if not isinstance(name, str):
        raise TypeError(f"series must have strings as keys, got {name!r}")
    if len(values) not in (2, 3):
        raise ValueError(f"series[{name!r}] must be (x, y) or (x, y, spread), got {len(values)} parts")
    named = zip(("x", "y", "spread"), values, strict=False)
    parts = {part: _parse_floats(f"{part} of series[{name!r}]", numbers) for part, numbers in named}
    lengths = [len(part) for part in parts.values()]
    if min(lengths) == 0 or min(lengths) != max(lengths):
        raise ValueError(f"series[{name!r}] must have parts of one length, at least 1, got lengths {lengths}")
    line = _Line(name, parts["x"], parts["y"], parts.get("spread", []))
    if line.spread and min(line.spread) < 0:
        raise ValueError(f"spread of series[{name!r}] must not be negative, got {min(line.spread)}")
    return line


def _parse_floats(argument: str, values: Numbers) -> list[float]:
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{argument} must be a sequence of numbers: {error}") from error
    for index, number in enumerate(numbers):
        # Beyond 1e300 the difference of two numbers may overflow.
        if not abs(number) <= 1e300:
            raise ValueError(f"{argument} must hold finite numbers up to 1e300, got {number} at index {index}")
    return numbers


def _to_log(line: _Line, log: str) -> _Line:
    """Replace the numbers of logarithmic axes by their exponents of ten."""
    if line.spread and "y" in log:
        raise ValueError(f"series[{line.name!r}] must not have a band with a logarithmic y")
    x, y = (
        _exponents(f"{axis} of series[{line.name!r}]", numbers) if axis in log else numbers
        for axis, numbers in (("x", line.x), ("y", line.y))
    )
    return _Line(line.name, x, y, line.spread)


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
