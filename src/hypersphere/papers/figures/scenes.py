"""Turnable spheres: plotly's data and layout, for HTML pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...report.networks import wires
from ...report.page import colour
from ...report.svg import PALETTE

_SIZE = 4  # of a dot
_SYMBOLS = ("circle", "square", "diamond", "cross", "x")
_SHOWN = 1.05  # half an edge of the box


def scene(traces: list[dict[str, Any]], *, reach: float = 0.0) -> Mapping[str, Any]:
    """Make a 3-D chart: of the unit sphere, or with `reach` of a box with axes of that length."""
    sphere = reach == 0
    edge = _SHOWN * (reach or 1.0)
    axis = {"range": [-edge, edge], "title": {"text": ""}, "showticklabels": False, "visible": not sphere}
    box = {"xaxis": axis, "yaxis": axis, "zaxis": axis, "aspectmode": "cube"}
    view = {"camera": {"eye": {"x": 1.0, "y": -1.0, "z": 0.6}}}
    margin = {"l": 0, "r": 0, "t": 30, "b": 30}
    layout = {"showlegend": True, "scene": box | view, "margin": margin}
    return {"data": [*([wires()] if sphere else []), *traces], "layout": layout}


def dots(points: Tensor, name: str, number: int, *, size: float = _SIZE) -> dict[str, Any]:
    """Draw points (N, 3) in the colour of this number."""
    symbol = _SYMBOLS[number // len(PALETTE) % len(_SYMBOLS)]  # tells apart classes of one colour
    marker = {"size": size, "color": colour(number), "symbol": symbol}
    return {"type": "scatter3d", "mode": "markers", "name": name, "marker": marker, **_places(points)}


def way(points: Tensor, name: str, number: int, *, width: float = 4) -> dict[str, Any]:
    """Draw a line through points (N, 3)."""
    line = {"color": colour(number), "width": width}
    return {"type": "scatter3d", "mode": "lines", "name": name, "line": line, **_places(points)}


def _places(points: Tensor) -> dict[str, Any]:
    return dict(zip("xyz", points.detach().cpu().numpy().T, strict=True))
