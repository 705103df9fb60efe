"""Charts of landscapes: contours of the loss and of the error, and their surfaces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ..train.storage.landscapes import StoredLandscape
from .chart import Chart, Scene, Series, Surface
from .contour import colour_at, contour_plot, is_wide, spread_levels
from .page import Page
from .scene import draw_scene
from .svg import is_empty_range

TENTHS = [i / 10 for i in range(11)]  # the same levels of the error in every picture
MOST_POINTS = 61  # of a surface along an axis
_WIDE, _HIGH = 0.62, 0.42  # half the edges of the box of a surface

Rows = Sequence[Sequence[float | None]]


def add_landscape(page: Page, name: str, stored: StoredLandscape) -> None:
    """Add the charts of a landscape to a page.

    Args:
        name: of the run.
        stored: the content of its file.
    """
    middle = stored.size // 2
    what = "the rotations' parameters" if stored.rotated else "the weights"
    loss = stored.loss[middle][middle]
    page.text(
        f"{name}, step {stored.step}, {stored.samples:,} samples of {stored.split}: loss "
        f"{'not finite' if loss is None else f'{loss:.4g}'}, error {stored.error[middle][middle]:.2%} in the middle. "
        f"{what.capitalize()} were moved along two {stored.direction} random directions, filter-normalized."
    )
    page.chart(contours(stored, name), wide=True)
    for key, rows, levels in (("loss", stored.loss, None), ("error", stored.error, TENTHS)):
        page.chart(surface_chart(stored.alpha, stored.beta, rows, levels, key), caption=name)


def contours(stored: StoredLandscape, title: str) -> Chart:
    """Draw the contours of the loss and of the error, side by side."""
    losses = [[math.inf if value is None else value for value in row] for row in stored.loss]
    panels = [("loss", losses, None), ("error", stored.error, TENTHS)]
    return contour_plot(panels, stored.alpha, stored.beta, title=title, xlabel="α", ylabel="β")


def surface_chart(
    alpha: Sequence[float], beta: Sequence[float], values: Rows, levels: Sequence[float] | None, title: str
) -> Chart:
    """Draw a surface over the grid in the colours of its contours; what is not finite is a hole.

    Args:
        levels: as of the contours; None: as :func:`contour_plot` chooses them. Heights follow the levels, so a loss
            that spans much is logarithmic.
    """
    step = math.ceil((len(alpha) - 1) / (MOST_POINTS - 1))
    alpha, beta, values = alpha[::step], beta[::step], [row[::step] for row in values[::step]]
    finite = [value for row in values for value in row if value is not None]
    borders = list(levels) if levels is not None else spread_levels(finite)
    low, high = borders[0], borders[-1]
    is_log = levels is None and is_wide(low, high)
    if is_empty_range(low, high):
        high = low + (abs(low) or 1.0)

    def share(value: float) -> float:
        return math.log(value / low) / math.log(high / low) if is_log else (value - low) / (high - low)

    def place(x: float, y: float, value: float | None) -> tuple[float, float, float]:
        height = 0.0 if value is None else min(max(share(value), 0.0), 1.0)
        right, far = (2 * (at - axis[0]) / (axis[-1] - axis[0]) - 1 for at, axis in ((x, alpha), (y, beta)))
        return _WIDE * right, _WIDE * far, _HIGH * (2 * height - 1)

    points = [
        [place(x, y, value) for y, value in zip(beta, row, strict=True)] for x, row in zip(alpha, values, strict=True)
    ]
    colours = [
        [_colour([*pair, *other], share) for pair, other in zip(pairwise(one), pairwise(two), strict=True)]
        for one, two in pairwise(values)
    ]
    base = [(_WIDE * x, _WIDE * y, -_HIGH) for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1))]
    edges = (base, [base[3], (*base[3][:2], _HIGH)])
    series = [Series("", edge, 7, size=1, is_line=True, in_legend=False) for edge in edges]
    side = _WIDE * 1.12
    labels = [((0, -side, -_HIGH), "α"), ((-side, 0, -_HIGH), "β")]
    labels += [((-side, side, _HIGH * (2 * share(v) - 1)), f"{v:.3g}") for v in (low, borders[len(borders) // 2], high)]
    surface = Surface(alpha, beta, values, points, colours)
    return draw_scene(Scene(series, surface=surface, labels=labels, turn=30, tilt=-30), title)


def _colour(corners: Sequence[float | None], share: Any) -> str | None:
    """Return the colour of a cell by the mean of its corners; None if one of them is not finite."""
    finite = [value for value in corners if value is not None]
    return colour_at(sum(map(share, finite)) / 4) if len(finite) == 4 else None
