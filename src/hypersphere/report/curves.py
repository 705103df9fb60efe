"""Curves of runs as plotly figures: means over seeds with bands, thinned so that no peak is lost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .page import colour
from .svg import PALETTE

Array = NDArray[np.float64]
INTERVALS = 400  # of a curve; of each the first, lowest, highest and last point stay
DASHES = ("solid", "dash", "dot", "dashdot")  # one for each cycle of the palette
LOG_AXIS = {"type": "log", "tickformat": "~g"}  # plotly's own labels are digits without their power of ten
_LOG = 30  # largest / smallest value from which an axis is logarithmic
_MOST_NAMED = 6  # marks with a text


class Curve(NamedTuple):
    """A mean over runs, and the standard deviation where there are several runs (0 elsewhere)."""

    steps: NDArray[np.int64]
    mean: Array
    std: Array


def mean_curve(parts: Sequence[Mapping[int, float]], scale: float = 1) -> Curve:
    """Average the values of several runs by step, at each step over the runs that have it, times `scale`.

    Example:
        >>> mean_curve([{0: 1.0, 10: 2.0}, {0: 3.0}]).mean
        array([2., 2.])
    """
    steps = np.unique(np.concatenate([np.array([*points], np.int64) for points in parts]))
    values = np.full((len(parts), len(steps)), np.nan)
    for row, points in zip(values, parts, strict=True):
        row[np.searchsorted(steps, [*points])] = [scale * value for value in points.values()]
    count = np.isfinite(values).sum(0)
    mean = np.nansum(values, 0) / count
    squares = np.nansum((values - mean) ** 2, 0)
    return Curve(steps, mean, np.sqrt(squares / np.maximum(count - 1, 1)))


def thin(values: Array, intervals: int = INTERVALS) -> NDArray[np.int64]:
    """Return the indices to draw: of each interval the first, the lowest, the highest and the last point.

    Example:
        >>> thin(np.array([0.0, 5, 1, 2, 3, 9, 3, 3, 3, 2]), intervals=2)
        array([0, 1, 4, 5, 9])
    """
    if len(values) <= 4 * intervals:
        return np.arange(len(values))
    parts = np.array_split(np.arange(len(values)), intervals)
    kept = [(p[0], p[values[p].argmin()], p[values[p].argmax()], p[-1]) for p in parts]
    return np.unique(np.array(kept))


class Mark(NamedTuple):
    """Where a run ended early.

    Attributes:
        curve: the name of its curve.
        what: such as "diverged".
        step, value: the place; None without a value: a line across the chart.
    """

    curve: str
    what: str
    step: int
    value: float | None


def lines(
    curves: Mapping[str, Curve], *, title: str, ylabel: str, xlabel: str = "step", marks: Sequence[Mark] = ()
) -> dict[str, Any]:
    """Draw named curves over steps; the band is the mean ± one standard deviation."""
    means = np.concatenate([curve.mean for curve in curves.values()])
    axis: dict[str, Any] = {"title": {"text": ylabel}}
    floor = -np.inf
    if means.min() > 0 and means.max() > _LOG * means.min():
        axis |= LOG_AXIS
        floor = means.min() / 2  # a logarithmic axis has no place for a band that reaches 0
    bands, traces = [], []
    for i, (name, curve) in enumerate(curves.items()):
        shared = {"legendgroup": str(i), "mode": "lines"}
        if curve.std.any():
            low, high = np.maximum(curve.mean - curve.std, floor), curve.mean + curve.std
            up, down = thin(high), thin(low)[::-1]
            band = {
                "x": np.concatenate([curve.steps[up], curve.steps[down]]),
                "y": np.concatenate([high[up], low[down]]),
            }
            fill = {"fill": "toself", "fillcolor": colour(i, 0.18), "line": {"width": 0}}
            bands.append({**shared, **band, **fill, "hoverinfo": "skip", "showlegend": False})
        kept = thin(curve.mean)
        style = {"color": colour(i), "width": 2, "dash": DASHES[i // len(PALETTE) % len(DASHES)]}
        points = {"x": curve.steps[kept], "y": curve.mean[kept], "name": name, "line": style}
        points |= {"customdata": curve.std[kept]} if curve.std.any() else {}
        traces.append({**shared, **points, **({"mode": "lines+markers"} if len(kept) == 1 else {})})
    layout = {
        "title": {"text": title},
        "xaxis": {"title": {"text": xlabel}},
        "yaxis": axis,
        "hovermode": "x unified" if len(curves) <= 10 else "closest",
        "showlegend": True,
        **_marks(marks, curves, "type" in axis),
    }
    return {"data": bands + traces, "layout": layout}


def _marks(marks: Sequence[Mark], curves: Mapping[str, Curve], log: bool) -> dict[str, Any]:
    """Return an arrow to the last point of each run that ended early, or a line across the chart if it has none."""
    texts, shapes = [], []
    names, middle = [*curves], max(curve.steps[-1] for curve in curves.values()) / 2
    for i, mark in enumerate(marks):
        ink = colour(names.index(mark.curve)) if mark.curve in names else colour(len(PALETTE) - 1)
        place: dict[str, Any] = {"x": mark.step, "y": 0.97, "yref": "paper", "yanchor": "top", "showarrow": False}
        if mark.value is None:
            x = {"x0": mark.step, "x1": mark.step, "y0": 0, "y1": 1, "yref": "paper"}
            shapes.append({"type": "line", **x, "line": {"color": ink, "width": 1.5, "dash": "dot"}})
        elif not log or mark.value > 0:
            y = math.log10(mark.value) if log else mark.value
            place = {"x": mark.step, "y": y, "yref": "y", "ay": -28, "showarrow": True}
        else:
            continue
        text = f"✕ {mark.curve} {mark.what}" if i < _MOST_NAMED else "✕"
        side = {"xanchor": "left" if mark.step <= middle else "right", "ax": 0, "arrowcolor": ink}
        texts.append({**place, **side, "text": text, "font": {"color": ink, "size": 12}})
    return {"annotations": texts, "shapes": shapes} if marks else {}
