"""What the networks of runs look like, as plotly figures: learned k, neurons on the sphere, 2-D and 3-D features."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..layers.similarity import LearnableSigmoid
from ..neurons import select
from ..train.config import Config
from ..train.inference.run import Run
from ..train.inference.scores import load_split
from ..train.openset import Embedder
from ..train.splits import Splits
from .page import LINE, Figure, colour
from .svg import PALETTE

MOST_NEURONS = 500  # of a layer that are drawn
MOST_LAYERS = 16
MOST_SAMPLES = 2000
SYMBOLS = ("circle", "square", "diamond", "cross", "x")  # one for each cycle of the palette; in 3-D too

EYE = {"x": 1.0, "y": 1.0, "z": 0.6}  # close: the sphere fills the chart
HOVER = "neuron %{customdata}<br>%{x:.3f}, %{y:.3f}, %{z:.3f}<extra></extra>"


def neurons(run: Run) -> dict[str, Tensor]:
    """Return the neurons (N, d) of every layer of a run, the loss head's as "head"."""
    classifier = run.classifier
    found = dict(select(classifier.network))
    if classifier.head is not None:
        of_head = select(classifier.head, output=None).values()
        found |= {"head" if i == 0 else f"head {i}": each for i, each in enumerate(of_head)}
    return {name: each.matrix().detach().float().flatten(0, -2) for name, each in found.items()}


# Similarities


def similarity_figure(run: Run, title: str) -> Figure | None:
    """Draw a histogram of the learned k of every layer; None if no similarity is learned."""
    found = learned_k(run)
    if not found:
        return None
    every = torch.cat([*found.values()])
    low, high = float(every.min()), float(every.max())
    bins = {"start": low, "end": high + 1e-6, "size": max(high - low, 1e-3) / 40}
    traces = [
        {"type": "histogram", "x": k.cpu().numpy(), "name": name, "xbins": bins, "marker": {"color": colour(i)}}
        for i, (name, k) in enumerate(found.items())
    ]
    axes = {"xaxis": {"title": {"text": "k"}}, "yaxis": {"title": {"text": "filters"}}}
    return {"data": traces, "layout": {"title": {"text": title}, "barmode": "stack", "showlegend": True, **axes}}


def learned_k(run: Run) -> dict[str, Tensor]:
    """Return the learned k of every layer; one that layers share is the first one's."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, module in run.model.named_modules(remove_duplicate=False):
        if isinstance(module, LearnableSigmoid):
            found.setdefault(id(module), (name.removesuffix(".similarity"), module.k.detach().flatten()))
    return dict(found.values())


# Neurons


def project(matrix: Tensor) -> tuple[NDArray[np.float32], float]:
    """Project unit neurons (N, d) to three dimensions, (N, 3), and return the share of their squared length kept.

    Up to three dimensions they stay as they are. Beyond, the three directions are those that keep the most.

    Example:
        >>> points, kept = project(torch.eye(4))
        >>> points.shape, round(kept, 2)
        ((4, 3), 0.75)
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
    kept = float(points.square().sum() / unit.square().sum().clamp_min(1e-30))
    return np.pad(points.numpy(), ((0, 0), (0, 3 - points.shape[1]))), kept


def sphere_figure(layers: dict[str, Tensor], title: str) -> Figure:
    """Draw the neurons of each layer on the unit sphere; the legend switches layers on and off."""
    traces: list[dict[str, Any]] = [wires()]
    first = next((name for name, matrix in layers.items() if matrix.shape[1] <= 3), next(iter(layers)))
    for i, (name, matrix) in enumerate(list(layers.items())[:MOST_LAYERS]):
        chosen = np.linspace(0, len(matrix) - 1, min(len(matrix), MOST_NEURONS)).round().astype(int)
        points, kept = project(matrix[chosen])
        how = "exact" if matrix.shape[1] <= 3 else f"3 of {matrix.shape[1]} axes, {kept:.0%} kept"
        some = "" if len(chosen) == len(matrix) else f", {len(chosen)} of {len(matrix)} neurons"
        trace = _points(points, 3.5, colour(i), SYMBOLS[i // len(PALETTE) % len(SYMBOLS)])
        hover = {"customdata": chosen, "hovertemplate": HOVER}
        traces.append(
            {**trace, **hover, "name": f"{name}: {how}{some}", "visible": True if name == first else "legendonly"}
        )
    hidden = {"visible": False, "range": [-1.05, 1.05]}
    scene = {"xaxis": hidden, "yaxis": hidden, "zaxis": hidden, "aspectmode": "cube", "camera": {"eye": EYE}}
    return {"data": traces, "layout": {"title": {"text": title}, "showlegend": True, "scene": scene}}


def wires() -> dict[str, Any]:
    """Draw circles of latitude and longitude."""
    turn = np.linspace(0, 2 * math.pi, 61)
    rings = []
    for angle in np.linspace(-math.pi / 3, math.pi / 3, 5):
        wide, high = math.cos(angle), math.sin(angle)
        rings.append(np.stack([wide * np.cos(turn), wide * np.sin(turn), np.full_like(turn, high)]))
    for angle in np.arange(6) * math.pi / 6:
        rings.append(np.stack([math.cos(angle) * np.cos(turn), math.sin(angle) * np.cos(turn), np.sin(turn)]))
    x, y, z = np.concatenate([np.pad(ring, ((0, 0), (0, 1)), constant_values=np.nan) for ring in rings], 1)
    line = {"color": LINE, "width": 1}
    return {"type": "scatter3d", "mode": "lines", "x": x, "y": y, "z": z, "line": line} | {
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _points(points: NDArray[Any], size: float, fill: str, symbol: str) -> dict[str, Any]:
    """Return the trace of points (N, 2) or (N, 3)."""
    kind = "scatter3d" if points.shape[1] == 3 else "scatter"
    places = dict(zip("xyz", points.T, strict=False))
    return {"type": kind, "mode": "markers", **places, "marker": {"size": size, "color": fill, "symbol": symbol}}


# Features


def feature_figure(run: Run, title: str) -> Figure | None:
    """Draw features and class directions of a run whose embedding has 2 or 3 dimensions; None for any other run.

    ValueError if its data cannot be loaded.
    """
    classes = class_weights(run)
    if classes is None or classes.shape[1] not in (2, 3):
        return None
    splits, split = load_split(run, None, run.config)
    if splits.is_open(split) or not hasattr(splits.split(split), "subset"):
        return None
    features, labels = (each.numpy() for each in embed_some(run, splits, split, run.config, MOST_SAMPLES))
    if features.shape[1] != classes.shape[1]:
        return None
    reach = float(np.quantile(np.linalg.norm(features, axis=1), 0.95)) or 1.0
    arrows = reach * torch.nn.functional.normalize(classes, dim=1).numpy()
    traces = []
    for i, name in enumerate(run.labels):
        fill, symbol = colour(i), SYMBOLS[i // len(PALETTE) % len(SYMBOLS)]
        shared = {"legendgroup": str(i), "name": name}
        traces.append({**_points(features[labels == i], 3 if features.shape[1] == 3 else 5, fill, symbol), **shared})
        line = {"mode": "lines+markers", "line": {"color": fill, "width": 3}, "showlegend": False}
        tip = {"marker": {"color": fill, "size": [0, 5 if features.shape[1] == 3 else 10]}}
        traces.append({**_points(np.stack([0 * arrows[i], arrows[i]]), 1, fill, "circle"), **shared, **line, **tip})
    layout: dict[str, Any] = {"title": {"text": title}, "showlegend": True}
    if features.shape[1] == 2:
        layout |= {"yaxis": {"scaleanchor": "x"}, "hovermode": "closest"}
    return {"data": traces, "layout": layout}


def embed_some(run: Run, splits: Splits, split: str, config: Config, most: int) -> tuple[Tensor, Tensor]:
    """Return the embeddings and labels of a split, of at most so many samples, evenly chosen."""
    whole = splits.split(split)
    part = whole.subset(torch.linspace(0, len(whole) - 1, min(len(whole), most)).round().long())
    return Embedder(run.classifier, splits, config, lambda batch: batch)(part), part.labels


def class_weights(run: Run) -> Tensor | None:
    """Return the class weights (C, d) of the head or the output layer."""
    if run.config.model.is_generator:
        return None
    head = run.classifier.head
    of_head = [] if head is None else list(select(head, output=None).values())
    found = of_head or [each for each in select(run.classifier.network).values() if each.is_output]
    if not found:
        return None
    matrix = found[-1].matrix().detach().float().flatten(0, -2)
    return matrix if len(matrix) == len(run.labels) else None
