"""Features of two and three dimensions with the classifier's neurons (MHE, Fig. 4 and 8; OPT, Fig. 7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...report.networks import class_weights, embed_some
from ...report.svg import PALETTE, text_line
from ...train.config import derive
from ...train.inference.run import Run, load_run
from ...train.inference.scores import load_split
from .drawing import TOP, Drawing, close_svg, open_svg
from .scenes import dots, scene, way
from .spheres import RADIUS, seen

COLOURS = (*PALETTE, "#999999", "#8C564B", "#6A3D9A")  # of ten classes, then again from the first
MOST = 3000  # samples of a panel
_PANEL, _REACH = 330, 140  # pixels: a panel, and the radius of its drawing


class Features(NamedTuple):
    """What a panel shows.

    Attributes:
        points: (N, d) features, divided by the length that 95 % of them do not exceed.
        labels: (N,).
        neurons: (C, d) directions of the classes.
    """

    points: Tensor
    labels: Tensor
    neurons: Tensor


def imbalance(inputs: Sequence[Path]) -> Drawing:
    """Draw 2-D features of the whole training set and of the test set, one line a run (MHE, Fig. 4 and 8)."""
    runs = [load_run(path) for path in inputs]
    panels: dict[str, Features] = {}
    rows = []
    for run, name in zip(runs, run_names(inputs), strict=True):
        for split in ("train", "test"):
            found = features(run, split, 2)
            panels[f"{name}: {'whole training set' if split == 'train' else 'test set'}"] = found
        angles = torch.rad2deg(torch.acos((found.neurons @ found.neurons.mT).clamp(-1, 1)))
        angles.fill_diagonal_(180)
        rows += [
            {"run": name, "class": label, "nearest class": run.labels[int(row.argmin())], "degrees": float(row.min())}
            for label, row in zip(run.labels, angles, strict=True)
        ]
    title = "Features and the directions of the classes"
    return Drawing(_draw(title, panels, runs[0].labels, columns=2, place=_flat), rows)


def features3d(inputs: Sequence[Path]) -> Drawing:
    """Draw 3-D features of the test set (OPT, Fig. 7)."""
    runs = [load_run(path) for path in inputs]
    panels = {name: features(run, "test", 3) for run, name in zip(runs, run_names(inputs), strict=True)}
    scenes = {
        name: scene([trace for i, label in enumerate(run.labels) for trace in _traces(found, i, label)], reach=1.2)
        for run, (name, found) in zip(runs, panels.items(), strict=True)
    }
    title = "Features in three dimensions and the directions of the classes"
    columns = min(2, len(panels))
    return Drawing(_draw(title, panels, runs[0].labels, columns=columns, place=_turned), scenes=scenes)


def features(run: Run, split: str, size: int) -> Features:
    """Embed samples of a split, without imbalance. ValueError if features do not have `size` dimensions."""
    run.check_labels()
    neurons = class_weights(run)
    if neurons is None or neurons.shape[1] != size:
        got = "no classes" if neurons is None else f"{neurons.shape[1]} dimensions"
        raise ValueError(f"{run.path} needs features of {size} dimensions, as with --model.fc {size}; it has {got}")
    config = derive(run.config, {"data.imbalance": None})
    splits, _ = load_split(run, split, config)
    points, labels = embed_some(run, splits, split, config, MOST)
    reach = points.norm(dim=1).quantile(0.95).clamp(min=1e-12)
    return Features(points / reach, labels, F.normalize(neurons, dim=1))


def run_names(inputs: Sequence[Path]) -> list[str]:
    """Name runs by the ends of their paths, as long as needed to tell them apart."""
    parts = [path.resolve().parts for path in inputs]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len({*names}) == len(names):
            return names
    raise ValueError("the same run was given twice")


def _flat(point: Sequence[float]) -> tuple[float, float]:
    x, y = point
    return _REACH * x, -_REACH * y


def _turned(point: Sequence[float]) -> tuple[float, float]:
    x, y, _ = seen(point)
    return _REACH / RADIUS * x, _REACH / RADIUS * y


def _draw(
    title: str,
    panels: dict[str, Features],
    labels: Sequence[str],
    columns: int,
    place: Callable[[Sequence[float]], tuple[float, float]],
) -> str:
    lines = -(-len(panels) // columns)
    width, height = max(_PANEL * columns, 640), TOP + lines * (_PANEL + 26) + 34
    parts = open_svg(title, width, height)
    for k, (name, found) in enumerate(panels.items()):
        x, y = width * (k % columns + 0.5) / columns, TOP + k // columns * (_PANEL + 26) + _PANEL / 2 + 8
        parts.append(f'<g transform="translate({x:g} {y:g})">')
        parts.append(
            f'<rect x="{-_PANEL / 2 + 6:g}" y="{-_PANEL / 2 + 6:g}" width="{_PANEL - 12}" height="{_PANEL - 12}" '
            'fill="#fff" stroke="#d3d6de"/>'
        )
        parts += _panel(found, place)
        parts.append(text_line(name, 0, _PANEL / 2 + 14, 14, anchor="middle", room=_PANEL, more='font-weight="600"'))
        parts.append("</g>")
    step = min(60.0, (width - 40) / max(1, len(labels)))
    for i, label in enumerate(labels[: len(COLOURS) * 2]):
        parts.append(f'<circle cx="{26 + step * i:g}" cy="{height - 16:g}" r="5" fill="{_colour(i)}"/>')
        parts.append(text_line(label, 35 + step * i, height - 11.5, 13, room=step - 16))
    return close_svg(parts)


def _panel(found: Features, place: Callable[[Sequence[float]], tuple[float, float]]) -> list[str]:
    """Draw the features as dots, and a neuron as an arrow with the class at its end."""
    edge = _PANEL / 2 - 10
    parts = []
    for i in range(len(found.neurons)):
        places = [place(point) for point in found.points[found.labels == i].tolist()]
        inside = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places if max(abs(x), abs(y)) < edge)
        look = f'stroke="{_colour(i)}" stroke-width="3" stroke-linecap="round" stroke-opacity="0.5"'
        parts.append(f'<path d="{inside}" {look} fill="none"/>')
    for i, neuron in enumerate(found.neurons.tolist()):
        x, y = place(neuron)
        parts.append(f'<path d="M0 0L{x:.1f} {y:.1f}" stroke="#fff" stroke-width="4.5"/>')
        parts.append(f'<path d="M0 0L{x:.1f} {y:.1f}" stroke="{_colour(i)}" stroke-width="2.4"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{_colour(i)}" stroke="#fff" stroke-width="1.2"/>')
    return parts


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _traces(found: Features, i: int, label: str) -> list[dict[str, Any]]:
    points, neuron = found.points[found.labels == i], found.neurons[i]
    arrow = way(torch.stack([torch.zeros_like(neuron), 1.1 * neuron]), label, i)
    return [dots(points, label, i, size=2), arrow | {"showlegend": False}]
