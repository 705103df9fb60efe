"""Charts of landscapes for a page: surface and contours of the loss and of the error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .contour import COLOURS, SPREAD
from .page import Page

_SCALE = [[i / (len(COLOURS) - 1), "rgb({}, {}, {})".format(*each)] for i, each in enumerate(COLOURS)]


def add_landscape(page: Page, name: str, tree: Mapping[str, Any]) -> None:
    """Add the charts of a landscape to a page.

    Args:
        name: of the run.
        tree: the content of its file, see :mod:`hypersphere.train.storage.landscapes`.
    """
    middle = tree["size"] // 2
    what = "the rotations' parameters" if tree["rotated"] else "the weights"
    loss = tree["loss"][middle][middle]
    page.text(
        f"{name}, step {tree['step']}, {tree['samples']:,} samples of {tree['split']}: loss "
        f"{'not finite' if loss is None else f'{loss:.4g}'}, error {tree['error'][middle][middle]:.2%} in the middle. "
        f"{what.capitalize()} were moved along two {tree['direction']} random directions, filter-normalized."
    )
    losses, label = _losses(tree["loss"])
    for values, title, top in ((losses, label, None), (np.array(tree["error"], float), "error", 1.0)):
        for kind in ("surface", "contour"):
            page.chart(_figure(kind, tree["alpha"], tree["beta"], values, title, top), caption=name)


def _losses(rows: Sequence[Sequence[float | None]]) -> tuple[np.ndarray[Any, Any], str]:
    """Return the loss, or its logarithm where it spans much; what is not finite is a hole."""
    values = np.array([[math.nan if each is None else each for each in row] for row in rows], float)
    seen = values[np.isfinite(values)]
    if seen.size and seen.min() > 0 and seen.max() > SPREAD * seen.min():
        return np.log10(values), "log10 of the loss"
    return values, "loss"


def _figure(
    kind: str,
    alpha: Sequence[float],
    beta: Sequence[float],
    values: np.ndarray[Any, Any],
    title: str,
    top: float | None,
) -> dict[str, Any]:
    trace: dict[str, Any] = {"type": kind, "x": list(alpha), "y": list(beta), "z": values.T, "colorscale": _SCALE}
    trace["hovertemplate"] = "α %{x:.3g}, β %{y:.3g}: %{z:.4g}<extra></extra>"
    axes: dict[str, dict[str, Any]] = {"xaxis": {"title": {"text": "α"}}, "yaxis": {"title": {"text": "β"}}}
    if kind == "contour":
        axes["xaxis"]["constrain"] = axes["yaxis"]["constrain"] = "domain"
        axes["yaxis"]["scaleanchor"] = "x"
        trace |= {"line": {"width": 0.7, "color": "rgba(255, 255, 255, 0.6)"}}
        if top is not None:
            trace |= {"contours": {"start": 0.0, "end": top, "size": top / 10}, "zmin": 0.0, "zmax": top}
        return {"data": [trace], "layout": axes | {"title": {"text": title}}}
    up: dict[str, Any] = {"title": {"text": title}}
    if top is not None:
        trace |= {"cmin": 0.0, "cmax": top}
        up["range"] = [0.0, top]
    return {
        "data": [trace],
        "layout": {
            "scene": axes | {"zaxis": up, "aspectmode": "cube", "camera": {"eye": {"x": 1.7, "y": 1.7, "z": 1.1}}},
            "title": {"text": title},
        },
    }
