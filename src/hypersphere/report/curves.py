"""Curves of runs: means over seeds with bands, thinned so that no peak is lost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .chart import Chart, Line
from .linechart import ROW, Mark, line_chart
from .svg import EDGE, LABEL, PALETTE, TITLE, arrange, data_range, legend_key, text_line, text_width

Array = NDArray[np.float64]
INTERVALS = 400  # of a curve; of each the first, lowest, highest and last point stay
_WIDTH, _PANEL = 500, 170  # pixels: a picture of panels, and the height of a panel
#: never logarithmic: shares, and a learning rate that falls to almost nothing, because the axis would show only that
_LINEAR = ("accuracy %", "top5 %", "lr")
_LOG = 30  # largest / smallest value from which an axis is logarithmic


class Curve(NamedTuple):
    """A mean over runs, and the standard deviation where there are several runs (0 elsewhere), by steps or the like."""

    steps: NDArray[np.int64] | Array
    mean: Array
    std: Array


def mean_curve(runs: Sequence[Mapping[int, float]], scale: float = 1) -> Curve:
    """Average the values of several runs by step, at each step over the runs that have it, times `scale`."""
    steps = np.unique(np.concatenate([np.array([*points], np.int64) for points in runs]))
    values = np.full((len(runs), len(steps)), np.nan)
    for row, points in zip(values, runs, strict=True):
        row[np.searchsorted(steps, [*points])] = [scale * value for value in points.values()]
    count = np.isfinite(values).sum(0)
    mean = np.nansum(values, 0) / count
    squares = np.nansum((values - mean) ** 2, 0)
    return Curve(steps, mean, np.sqrt(squares / np.maximum(count - 1, 1)))


def thin(values: Array, intervals: int = INTERVALS) -> NDArray[np.int64]:
    """Return the indices to draw: of each interval the first, the lowest, the highest and the last point."""
    if len(values) <= 4 * intervals:
        return np.arange(len(values))
    places = [
        (part[0], part[values[part].argmin()], part[values[part].argmax()], part[-1])
        for part in np.array_split(np.arange(len(values)), intervals)
    ]
    return np.unique(np.array(places))


def curve_chart(
    curves: Mapping[str, Curve],
    *,
    title: str,
    ylabel: str = "",
    xlabel: str = "step",
    log: str = "",
    marks: Sequence[Mark] = (),
    names: Sequence[str] = (),
    legend: bool = True,
    width: float = 500,
    height: float | None = None,
) -> Chart:
    """Draw named curves over steps; the band is the mean ± one standard deviation.

    Args:
        log: "x": that axis is logarithmic. The other one is if the values need it.
        height: of the whole picture; None: as much as its legend needs.
    """
    return line_chart(
        {name: _series(curve) for name, curve in curves.items()},
        title=title,
        xlabel=xlabel,
        ylabel=ylabel,
        log=log + ("y" if _is_wide(curves.values(), ylabel) else ""),
        marks=marks,
        names=names,
        legend=legend,
        width=width,
        height=height or 1.0,
        plot_height=240 if height is None else None,
    )


def panel_chart(
    panels: Mapping[str, Mapping[str, Curve]],
    *,
    names: Sequence[str],
    title: str,
    ylabel: str,
    marks: Mapping[str, Sequence[Mark]],
) -> Chart:
    """Draw panels of curves over steps, two a row, with one y axis and one legend.

    Args:
        panels: title → curves by name.
        names: of the curves, in the order of the legend.
        marks: of each panel.
    """
    curves = [curve for panel in panels.values() for curve in panel.values()]
    is_wide = _is_wide(curves, ylabel)
    lowest = min(float((curve.mean if is_wide else curve.mean - curve.std).min()) for curve in curves)
    ends = [lowest, max(float((curve.mean + curve.std).max()) for curve in curves)]
    low, high = data_range([math.log10(end) for end in ends] if is_wide else ends, margin=0.05)
    column, top = _WIDTH / min(2, len(panels)), EDGE + TITLE + 10
    bold = 'font-weight="600"'
    parts = [text_line(title, EDGE, EDGE + TITLE * 0.8, TITLE, room=_WIDTH - 2 * EDGE, more=bold)]
    placed, lines = [], list[Line]()
    for i, (name, panel) in enumerate(panels.items()):
        left, y = i % 2 * column, top + i // 2 * (_PANEL + ROW)
        chart = line_chart(
            {of_curve: _series(curve) for of_curve, curve in panel.items()},
            xlabel="step",
            ylim=(10**low, 10**high) if is_wide else (low, high),
            log="y" if is_wide else "",
            marks=marks[name],
            names=names,
            legend=False,
            width=column,
            height=_PANEL,
        )
        placed.append((left, y + ROW, chart))
        parts.append(text_line(name, left + EDGE, y + LABEL, LABEL, room=column - 2 * EDGE, more=bold))
        lines += [replace(line, panel=name) for line in chart.lines]
    below = top + math.ceil(len(panels) / 2) * (_PANEL + ROW)
    legend, height = _legend(names, [line.name for line in lines], below)
    return replace(arrange(placed, title, _WIDTH, height, [*parts, *legend]), lines=lines)


def _legend(names: Sequence[str], drawn: Sequence[str], top: float) -> tuple[list[str], float]:
    """Draw the legend of several panels, whose lines are called so, and return where it ends."""
    shown = [name for name in names if name in drawn]
    column = min(_WIDTH - EDGE, 40 + max(text_width(name, LABEL) for name in shown))
    columns = int((_WIDTH - EDGE) // column)
    parts = []
    for i, name in enumerate(shown):
        x, y = 2 * EDGE + i % columns * column, top + ROW * (i // columns + 0.5)
        colour = PALETTE[names.index(name) % len(PALETTE)]
        parts.append(legend_key(drawn.index(name), name, colour, x, y, column - 20))  # as page.js numbers lines
    return parts, top + ROW * math.ceil(len(shown) / columns) + EDGE


def _is_wide(curves: Iterable[Curve], ylabel: str) -> bool:
    means = np.concatenate([curve.mean for curve in curves])
    return ylabel not in _LINEAR and bool(means.min() > 0 and means.max() > _LOG * means.min())


def _series(curve: Curve) -> tuple[list[float], list[float]] | tuple[list[float], list[float], list[float]]:
    """Return x, y and, where there are several runs, the spread of a line."""
    if not curve.std.any():
        shown = thin(curve.mean)
        return curve.steps[shown].tolist(), curve.mean[shown].tolist()
    edges = (curve.mean, curve.mean - curve.std, curve.mean + curve.std)
    shown = np.unique(np.concatenate([thin(edge, INTERVALS // 2) for edge in edges]))  # no peak of the band is lost
    return curve.steps[shown].tolist(), curve.mean[shown].tolist(), curve.std[shown].tolist()
