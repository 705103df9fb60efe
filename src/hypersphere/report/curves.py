"""Curves of runs: means over seeds with bands, thinned so that no peak is lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .chart import Chart
from .linechart import Mark, line_chart

Array = NDArray[np.float64]
INTERVALS = 400  # of a curve; of each the first, lowest, highest and last point stay
_LOG = 30  # largest / smallest value from which an axis is logarithmic


class Curve(NamedTuple):
    """A mean over runs, and the standard deviation where there are several runs (0 elsewhere)."""

    steps: NDArray[np.int64]
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
    marks: Sequence[Mark] = (),
    legend: bool = True,
    width: float = 500,
    height: float | None = None,
) -> Chart:
    """Draw named curves over steps; the band is the mean ± one standard deviation.

    Args:
        height: of the whole picture; None: as much as its legend needs.
    """
    means = np.concatenate([curve.mean for curve in curves.values()])
    # a learning rate may fall to almost nothing, which a logarithmic axis would show and nothing else
    is_wide = ylabel != "lr" and bool(means.min() > 0 and means.max() > _LOG * means.min())
    return line_chart(
        {name: _series(curve) for name, curve in curves.items()},
        title=title,
        xlabel=xlabel,
        ylabel=ylabel,
        log="y" if is_wide else "",
        marks=marks,
        legend=legend,
        width=width,
        height=height or 1.0,
        plot_height=240 if height is None else None,
    )


def _series(curve: Curve) -> tuple[list[float], list[float]] | tuple[list[float], list[float], list[float]]:
    """Return x, y and, where there are several runs, the spread of a line."""
    if not curve.std.any():
        shown = thin(curve.mean)
        return curve.steps[shown].tolist(), curve.mean[shown].tolist()
    edges = (curve.mean, curve.mean - curve.std, curve.mean + curve.std)
    shown = np.unique(np.concatenate([thin(edge, INTERVALS // 2) for edge in edges]))  # no peak of the band is lost
    return curve.steps[shown].tolist(), curve.mean[shown].tolist(), curve.std[shown].tolist()
