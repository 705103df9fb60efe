"""What the networks of runs look like: learned k, neurons on the sphere, 2-D and 3-D features."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..layers.similarity import LearnableSigmoid
from ..neurons import select
from ..train.config import derive
from ..train.inference.run import Run
from ..train.inference.scores import load_split
from ..train.openset import Embedder
from .chart import Chart, Scene, Series
from .linechart import line_chart
from .scene import RADIUS, draw_scene, seen
from .svg import CLASSES, PAPER, arrange, document, escape, heading, legend_key, text_line

MOST_NEURONS = 500  # of a layer that are drawn
MOST_LAYERS = 16
MOST_COMPARED = 2048  # neurons of a layer whose angles are measured
MOST_SAMPLES = 3000  # of a panel
BINS = 24
_PANEL, _REACH = 330, 140  # pixels: a panel of features, and the radius of its drawing
_COLUMN, _ROW = 300, 200  # pixels of a histogram


def neurons(run: Run) -> dict[str, Tensor]:
    """Return the neurons (N, d) of every layer of a run, the loss head's as "head"."""
    classifier = run.classifier
    layers = dict(select(classifier.network))
    if classifier.head is not None:
        of_head = select(classifier.head, output=None).values()
        layers |= {"head" if i == 0 else f"head {i}": layer for i, layer in enumerate(of_head)}
    return {name: layer.matrix().detach().float().flatten(0, -2) for name, layer in layers.items()}


# Similarities


def learned_k(run: Run) -> dict[str, Tensor]:
    """Return the learned k of every layer; one that layers share is the first one's."""
    layers: dict[int, tuple[str, Tensor]] = {}
    for name, module in run.model.named_modules(remove_duplicate=False):
        if isinstance(module, LearnableSigmoid):
            layers.setdefault(id(module), (name.removesuffix(".similarity"), module.k.detach().flatten()))
    return dict(layers.values())


def k_chart(layers: Mapping[str, Tensor], title: str) -> Chart:
    """Draw a histogram of the learned k of every layer, on one scale (SphereNet, Fig. 4)."""
    every = torch.cat([*layers.values()])
    low, high = float(every.min()), float(every.max())
    low, high = (low - 0.05, high + 0.05) if high - low < 1e-6 else (low, high)
    edges = [low + (high - low) * i / BINS for i in range(BINS + 1)]
    columns = min(3, len(layers))
    panels = []
    for i, (name, k) in enumerate(layers.items()):
        counts = np.histogram(k.tolist(), BINS, (low, high))[0].tolist()
        chart = line_chart(
            {name: ([edge for edge in edges for _ in (0, 1)], [0, *(n for n in counts for _ in (0, 1)), 0])},
            title=name,
            xlabel="k",
            ylabel="filters",
            xlim=(low, high),
            ylim=(0.0, 1.05 * max(counts)),
            legend=False,
            filled=True,
            width=_COLUMN,
            height=_ROW,
        )
        panels.append((i % columns * _COLUMN, 40 + i // columns * _ROW, chart))
    height = 40 + math.ceil(len(layers) / columns) * _ROW
    return arrange(panels, title, max(_COLUMN * columns, 420), height, [heading(title)])


# Neurons


def project(matrix: Tensor) -> tuple[NDArray[np.float32], float]:
    """Project unit neurons (N, d) to three dimensions, (N, 3), and return the share of their squared length kept.

    Up to three dimensions they stay as they are. Beyond, the three directions are those that keep the most.
    """
    norms = matrix.norm(dim=1, keepdim=True)
    unit = matrix / norms.clamp_min(torch.finfo(matrix.dtype).tiny)
    if unit.shape[1] <= 3:
        return np.pad(unit.numpy(), ((0, 0), (0, 3 - unit.shape[1]))), 1.0
    if len(unit) < unit.shape[1]:  # the smaller of both products
        squares, vectors = torch.linalg.eigh(unit @ unit.T)
        points = (vectors * squares.clamp_min(0).sqrt())[:, -3:].flip(1)
    else:
        points = unit @ torch.linalg.eigh(unit.T @ unit)[1][:, -3:].flip(1)
    share = float(points.square().sum() / unit.square().sum().clamp_min(1e-30))
    return np.pad(points.numpy(), ((0, 0), (0, 3 - points.shape[1]))), share


def nearest_angle(matrix: Tensor) -> float:
    """Return the mean angle of a neuron to the nearest other one, in degrees; of large layers, of some neurons."""
    chosen = torch.linspace(0, len(matrix) - 1, min(len(matrix), MOST_COMPARED)).round().long()
    unit = F.normalize(matrix[chosen], dim=1)
    cosines = (unit @ unit.T).fill_diagonal_(-1)
    return math.degrees(cosines.amax(1).clamp(-1, 1).acos().mean())


def evenness_chart(networks: Mapping[str, Mapping[str, Tensor]]) -> Chart:
    """Draw the mean angle to the nearest neuron over the layers, for networks with layers of one size and at random."""
    layers = next(iter(networks.values()))
    draw = torch.Generator().manual_seed(0)
    random = {name: torch.randn(matrix.shape, generator=draw) for name, matrix in layers.items()}
    numbers = range(1, len(layers) + 1)
    few = ": " + ", ".join(layers) if len(layers) <= 4 else ""
    return line_chart(
        {
            name: (numbers, map(nearest_angle, matrices.values()))
            for name, matrices in {**networks, "random directions": random}.items()
        },
        title=f"Angle to the nearest neuron, {len(layers)} layers",
        xlabel=f"layer{few}",
        ylabel="mean angle (degrees)",
        width=500,
        plot_height=240,
    )


def neurons_chart(layers: Mapping[str, Tensor], title: str) -> Chart:
    """Draw neurons (N, d) with d <= 3 on the unit sphere; the legend switches layers on and off."""
    series = []
    for i, (name, matrix) in enumerate(list(layers.items())[:MOST_LAYERS]):
        chosen = np.linspace(0, len(matrix) - 1, min(len(matrix), MOST_NEURONS)).round().astype(int)
        points, _ = project(matrix[chosen])
        some = "" if len(chosen) == len(matrix) else f": {len(chosen)} of {len(matrix)} neurons"
        places, numbers = points.tolist(), chosen.tolist() if some else ()
        series.append(Series(f"{name}{some}", places, i, is_shown=i == 0, numbers=numbers))
    return draw_scene(Scene(series, has_sphere=True), title)


# Features


class Features(NamedTuple):
    """Features of samples.

    Attributes:
        points: (N, d), divided by the length that 95 % of them do not exceed.
        labels: (N,).
        neurons: (C, d) directions of the classes.
    """

    points: Tensor
    labels: Tensor
    neurons: Tensor


def feature_size(run: Run) -> int | None:
    """Return the dimensions of a run's features if they can be drawn, 2 or 3."""
    weights = class_weights(run)
    return weights.shape[1] if weights is not None and weights.shape[1] in (2, 3) else None


def features(run: Run, split: str | None, size: int) -> Features:
    """Embed samples of a split (None: the test split), without imbalance.

    ValueError if the features do not have `size` dimensions, or if the data cannot be loaded.
    """
    run.check_labels()
    neurons = class_weights(run)
    if neurons is None or neurons.shape[1] != size:
        got = "no classes" if neurons is None else f"{neurons.shape[1]} dimensions"
        raise ValueError(f"{run.path} needs features of {size} dimensions, as with --model.fc {size}; it has {got}")
    config = derive(run.config, {"data.imbalance": None})
    splits, split = load_split(run, split, config)
    whole = splits.split(split)
    if splits.is_open(split) or not hasattr(whole, "subset"):
        raise ValueError(f"the {split} data of {run.path} have no samples of the classes it was trained on")
    some = whole.subset(torch.linspace(0, len(whole) - 1, min(len(whole), MOST_SAMPLES)).round().long())
    points = Embedder(run.classifier, splits, config, lambda batch: batch)(some)
    if points.shape[1] != size:
        raise ValueError(f"the embedding of {run.path} has {points.shape[1]} dimensions, its classes {size}")
    reach = points.norm(dim=1).quantile(0.95).clamp(min=1e-12)
    return Features(points / reach, some.labels, F.normalize(neurons, dim=1))


def class_weights(run: Run) -> Tensor | None:
    """Return the class weights (C, d) of the head or the output layer."""
    if run.config.model.is_generator:
        return None
    head = run.classifier.head
    of_head = [] if head is None else list(select(head, output=None).values())
    layers = of_head or [layer for layer in select(run.classifier.network).values() if layer.is_output]
    if not layers:
        return None
    matrix = layers[-1].matrix().detach().float().flatten(0, -2)
    return matrix if len(matrix) == len(run.labels) else None


def feature_chart(panels: Mapping[str, Features], labels: Sequence[str], title: str = "") -> Chart:
    """Draw features and class directions of 2 or 3 dimensions, up to two panels side by side.

    Args:
        labels: the classes.
        title: above the panels.

    A single panel of three dimensions can be turned on a page.
    """
    columns, top = min(2, len(panels)), 34 if title else 0
    width = max(_PANEL * columns, 640 if title else 420)
    step = min(60.0, (width - 40) / max(1, len(labels)))
    height = top + math.ceil(len(panels) / columns) * (_PANEL + 26) + 34
    parts = [heading(title)] if title else []
    for k, (name, panel) in enumerate(panels.items()):
        x, y = width * (k % columns + 0.5) / columns, top + k // columns * (_PANEL + 26) + _PANEL / 2 + 8
        edge = f'x="{-_PANEL / 2 + 6:g}" y="{-_PANEL / 2 + 6:g}" width="{_PANEL - 12}" height="{_PANEL - 12}"'
        parts.append(f'<g transform="translate({x:g} {y:g})"><rect {edge} fill="{PAPER}" stroke="#c9ccd4"/>')
        parts += _panel(panel, labels)
        parts.append(text_line(name, 0, _PANEL / 2 + 14, 14, anchor="middle", room=_PANEL, more='font-weight="600"'))
        parts.append("</g>")
    for i, label in enumerate(labels[: len(CLASSES) * 2]):
        parts.append(legend_key(i, label, _colour(i), 26 + step * i, height - 16, step - 16))
    (name, panel), *others = panels.items()
    is_flat = panel.points.shape[1] == 2
    scene = None if others or is_flat else _feature_scene(panel, labels)
    return Chart(document(parts, title or name, width, height, is_centred=True), scene=scene)


def _panel(panel: Features, labels: Sequence[str]) -> list[str]:
    """Draw the features as dots, and a neuron as an arrow with the class at its end."""
    parts, edge = [], _PANEL / 2 - 10
    for i, neuron in enumerate(panel.neurons.tolist()):
        places = [_place(point) for point in panel.points[panel.labels == i].tolist()]
        dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places if max(abs(x), abs(y)) < edge)
        look = f'stroke="{_colour(i)}" stroke-width="3" stroke-linecap="round" stroke-opacity="0.5"'
        hint = f"<title>{escape(labels[i])}</title>"
        parts.append(f'<g data-line="{i}"><path d="{dots}" {look} fill="none">{hint}</path>')
        x, y = _place(neuron)
        parts.append(f'<path d="M0 0L{x:.1f} {y:.1f}" stroke="{PAPER}" stroke-width="4.5"/>')
        parts.append(f'<path d="M0 0L{x:.1f} {y:.1f}" stroke="{_colour(i)}" stroke-width="2.4"/>')
        look = f'fill="{_colour(i)}" stroke="{PAPER}" stroke-width="1.2"'
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" {look}>{hint}</circle></g>')
    return parts


def _feature_scene(panel: Features, labels: Sequence[str]) -> Scene:
    series, reach = [], 1 / 1.25
    for i, label in enumerate(labels):
        points, neuron = panel.points[panel.labels == i], panel.neurons[i].tolist()
        inside = points[points.norm(dim=1) < 1.25]
        series.append(Series(label, (reach * inside).tolist(), i, size=3.5))
        series.append(Series(label, [[0.0] * 3, [reach * x for x in neuron]], i, 3, is_line=True, in_legend=False))
    return Scene(series)


def _place(point: Sequence[float]) -> tuple[float, float]:
    x, y = (RADIUS * point[0], -RADIUS * point[1]) if len(point) == 2 else seen(point)[:2]
    return _REACH / RADIUS * x, _REACH / RADIUS * y


def _colour(i: int) -> str:
    return CLASSES[i % len(CLASSES)]
