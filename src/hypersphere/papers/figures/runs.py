"""Figures of run folders: convergence, energies of layers, learned k, the sweep of λ."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...energy.measures import default_weights
from ...report import line_chart, networks
from ...report.curves import Curve, mean_curve, thin
from ...report.run_files import Group, RunFiles, group_runs, read_runs
from ...report.svg import PALETTE
from ...train.inference.run import load_run
from ...train.storage.layout import METRICS
from .. import tables
from ..reproduce import results
from .drawing import Drawing, at, close_svg, open_svg

_WIDTH, _COLUMNS = 900, 3  # of pictures with panels
_PANEL_HEIGHT, _LEGEND_ROW = 200, 20
_BINS = 24
_RECORDED = "pair_energies"  # in the metrics


# ------------------------------------------------------------------------------------------------ convergence


def convergence(inputs: Sequence[Path]) -> Drawing:
    """Draw accuracy, error and loss of runs over the steps, means over seeds with bands (SphereNet, Fig. 3 and 5)."""
    groups = group_runs(read_runs(inputs))
    split, keys = _shared_curves(groups)
    if not keys:
        raise ValueError("the runs have no accuracy or loss in common with two points or more; see --eval_every")
    charts: list[tuple[str, str, dict[str, Curve]]] = []
    for key in keys:
        curves = {each.name: _curve(each, key, split) for each in groups}
        charts.append((key, _unit(key), curves))
    rows = [
        {"run": group.name, "seeds": len(group.runs), "last step": int(charts[0][2][group.name].steps[-1])}
        | {f"{split} {unit}": float(curves[group.name].mean[-1]) for _, unit, curves in charts}
        for group in groups
    ]
    top, title = _height(420, len(groups)), "Convergence"
    parts = open_svg(title, _WIDTH, top + (_PANEL_HEIGHT + 60 if charts[1:] else 0), shown=False)
    for i, (key, unit, curves) in enumerate(charts):
        width = _WIDTH / max(1, len(charts) - 1) if i else _WIDTH
        chart = line_chart(
            {name: _series(curve) for name, curve in curves.items()},
            title=f"{'' if i else f'{title}: '}{split} {key} over the steps",
            xlabel="step",
            ylabel=unit,
            width=width,
            height=_PANEL_HEIGHT + 60 if i else top,
            legend=not i,
        )
        parts.append(at(width * max(0, i - 1), top if i else 0, chart))
    return Drawing(close_svg(parts), rows)


def _unit(key: str) -> str:
    return key if key == "loss" else f"{key}, %"


def _curve(group: Group, key: str, split: str) -> Curve:
    """Return the mean of a figure over the seeds; accuracy and error are in percent."""
    if key == "loss":
        return mean_curve([run.points(key, split) for run in group.runs])
    found = [run.points("accuracy", split) for run in group.runs]
    if key == "error":
        found = [{step: 1 - value for step, value in points.items()} for points in found]
    return mean_curve(found, 100.0)


def _shared_curves(groups: Sequence[Group]) -> tuple[str, list[str]]:
    """Return the split and the figures that all runs have, with two points or more: test or validation data first."""
    runs = [run for group in groups for run in group.runs]
    for key in ("accuracy", "loss"):
        for split in ("test", "validation", "train"):
            has = {each: all(len(run.points(each, split)) >= 2 for run in runs) for each in ("accuracy", "loss")}
            if has[key]:
                return split, [*(["accuracy", "error"] if has["accuracy"] else []), *(["loss"] if has["loss"] else [])]
    return "", []


def _series(curve: Curve) -> tuple[Any, ...]:
    """Return the parts of a line; a band where there are several seeds."""
    kept = thin(curve.mean)
    parts = [curve.steps[kept].tolist(), curve.mean[kept].tolist(), curve.std[kept].tolist()]
    return tuple(parts if curve.std.any() else parts[:2])


def _height(height: float, lines: int) -> float:
    """Make room for a long legend: two lines a row at least."""
    return height + _LEGEND_ROW * max(0, math.ceil(lines / 2) - 3)


# ------------------------------------------------------------------------------------------------ energy


def energy(inputs: Sequence[Path]) -> Drawing:
    """Draw energy and error over the steps (OPT, Fig. 6), and the energy of every layer (Fig. 23).

    The energy is Σ_i Σ_{j≠i} ‖ŵ_i − ŵ_j‖⁻¹, for all runs alike, over the hidden layers that all of them recorded.
    """
    groups = group_runs(read_runs(inputs))
    recorded = [run.energies(_RECORDED) for group in groups for run in group.runs]
    layers = [name for name in recorded[0] if all(name in found for found in recorded)]
    if not layers:
        raise ValueError(
            f"the runs have no hidden layer in common whose {_RECORDED} are in {METRICS}; older versions of "
            "hypersphere did not record them"
        )
    curves = {
        name: {
            group.name: mean_curve([_energies(run, [name] if name else layers) for run in group.runs])
            for group in groups
        }
        for name in ("", *layers)
    }
    split, keys = _shared_curves(groups)
    wide, top = _WIDTH / 2 if "error" in keys else _WIDTH, _height(380, 2 * len(groups))
    parts = open_svg(
        "Hyperspherical energy", _WIDTH, top + math.ceil(len(layers) / _COLUMNS) * _PANEL_HEIGHT, shown=False
    )
    charts = {"Hyperspherical energy of all layers": (curves[""], "energy")}
    if "error" in keys:
        errors = {group.name: _curve(group, "error", split) for group in groups}
        charts[f"{split.capitalize()} error"] = errors, _unit("error")
    for i, (title, (lines, unit)) in enumerate(charts.items()):
        series = {name: _series(curve) for name, curve in lines.items()}
        chart = line_chart(series, title=title, xlabel="step", ylabel=unit, width=wide, height=top)
        parts.append(at(i * wide, 0, chart))
    for i, name in enumerate(layers):
        series = {each: _series(curve) for each, curve in curves[name].items()}
        panel = line_chart(series, title=name, width=_WIDTH / _COLUMNS, height=_PANEL_HEIGHT, legend=False)
        parts.append(at(i % _COLUMNS * _WIDTH / _COLUMNS, top + i // _COLUMNS * _PANEL_HEIGHT, panel))
    rows = [
        {"run": each, "layer": name or "all", "first": float(curve.mean[0]), "last": float(curve.mean[-1])}
        for name, lines in curves.items()
        for each, curve in lines.items()
    ]
    note = "Sum of 1/distance over all pairs of neurons on the sphere (s = 1, full space), without the output layer."
    return Drawing(close_svg(parts), rows, [note])


def _energies(run: RunFiles, layers: Sequence[str]) -> dict[int, float]:
    """Return the sums over layers by the steps at which all were measured."""
    found = [run.energies(_RECORDED)[name] for name in layers]
    return {step: sum(each[step] for each in found) for step in found[0] if all(step in each for each in found)}


# ------------------------------------------------------------------------------------------------ k


def learned_k(inputs: Sequence[Path]) -> Drawing:
    """Draw histograms of the k that a run has learned, layer by layer (SphereNet, Fig. 4)."""
    run = load_run(inputs[0])
    layers = {name: k.tolist() for name, k in networks.learned_k(run).items()}
    if not layers:
        raise ValueError(f"{run.path} has no learned k: it was not trained with --model.similarity learnable")
    low, high = min(map(min, layers.values())), max(map(max, layers.values()))
    low, high = (low - 0.05, high + 0.05) if high - low < 1e-6 else (low, high)
    columns = min(_COLUMNS, len(layers))
    width, height = _WIDTH / _COLUMNS * columns, 40 + math.ceil(len(layers) / columns) * _PANEL_HEIGHT
    parts = open_svg("Learned k of the filters of each layer", max(width, 420), height)
    for i, (name, values) in enumerate(layers.items()):
        panel = histogram(values, (low, high), name, width / columns)
        parts.append(at(i % columns * width / columns, 40 + i // columns * _PANEL_HEIGHT, panel))
    rows = [
        {
            "layer": name,
            "filters": len(values),
            "mean": statistics.mean(values),
            "std": statistics.pstdev(values),
            "lowest": min(values),
            "highest": max(values),
        }
        for name, values in layers.items()
    ]
    return Drawing(close_svg(parts), rows)


def histogram(values: Sequence[float], limits: tuple[float, float], title: str, width: float) -> str:
    """Draw how many values are in each of the bins between the limits."""
    low, high = limits
    size = (high - low) / _BINS
    counts = [0] * _BINS
    for value in values:
        counts[min(_BINS - 1, max(0, int((value - low) / size)))] += 1
    edges = [low + size * k for k in range(_BINS + 1)]
    x = [edge for edge in edges for _ in (0, 1)]
    y = [0.0, *(float(count) for count in counts for _ in (0, 1)), 0.0]
    outline = line_chart(
        {title: (x, y)},
        title=title,
        xlabel="k",
        ylabel="filters",
        ylim=(0, 1.05 * max(counts)),
        xlim=limits,
        width=width,
        height=_PANEL_HEIGHT,
        legend=False,
    )
    return outline.replace('fill="none" stroke="', f'fill="{PALETTE[0]}" fill-opacity="0.25" stroke="', 1)


# ------------------------------------------------------------------------------------------------ λ


def sweep(inputs: Sequence[Path]) -> Drawing:
    """Draw the test error over the weight λ of the energy (MHE, Fig. 3)."""
    measured: dict[str, dict[float, list[float]]] = {}
    for settings, error in _errors(inputs):
        kind, weight = _variant(settings)
        measured.setdefault(kind, {}).setdefault(weight, []).append(error)
    plain = measured.pop("", {}).get(0.0, [])
    if not measured:
        raise ValueError("none of the runs has an energy with a weight above 0; see --energy.hidden_weight")
    weights = sorted({weight for those in measured.values() for weight in those})
    series: dict[str, Any] = {}
    for kind, those in measured.items():
        means = [statistics.mean(those[weight]) for weight in sorted(those)]
        spread = [statistics.stdev(those[weight]) if len(those[weight]) > 1 else 0.0 for weight in sorted(those)]
        series[kind] = (sorted(those), means, spread) if any(spread) else (sorted(those), means)
    if plain:
        series["no energy"] = ([weights[0], weights[-1]], [statistics.mean(plain)] * 2)
    svg = line_chart(
        series,
        title="Error over the weight of the energy",
        xlabel="weight λ",
        ylabel="error, %",
        log="x",
        height=_height(420, len(series)),
    )
    rows = [
        {"energy": kind, "λ": weight, "runs": len(those[weight]), "error (%)": statistics.mean(those[weight])}
        for kind, those in [*measured.items(), *([("none", {0.0: plain})] if plain else [])]
        for weight in sorted(those)
    ]
    return Drawing(svg, rows)


def _errors(inputs: Sequence[Path]) -> Iterable[tuple[Mapping[str, Any], float]]:
    """Yield the settings and the test error of each run, or of each entry of a results file."""
    files = [path for path in inputs if path.is_file()]
    folders = [path for path in inputs if not path.is_file()]
    for run in read_runs(folders) if folders else ():
        accuracy = run.final().get("accuracy")
        if accuracy is None:
            raise ValueError(f"{run.path} has no accuracy")
        yield run.config, 100 - 100 * accuracy
    for path in files:
        table = tables.load(path.stem)
        for entry in results.read(path.parent, path.stem):
            row = table.row(entry.row)
            config = row.full if entry.form == results.FULL else row.small
            if config is not None and "error" in entry.figures:
                group = {} if config.energy is None else vars(config.energy)
                yield {f"energy.{key}": value for key, value in group.items()}, entry.figures["error"]


def _variant(settings: Mapping[str, Any]) -> tuple[str, float]:
    """Return the kind of energy, as in the paper's legend, and its weight; "" and 0 without energy."""
    if "energy.measure" not in settings:
        return "", 0.0
    half_space = bool(settings.get("energy.half_space"))
    defaults = default_weights(settings["energy.measure"], half_space) or (0.0, 0.0)
    given = [settings.get(f"energy.{part}_weight") for part in ("hidden", "output")]
    hidden, output = (default if x is None else x for x, default in zip(given, defaults, strict=True))
    name = settings["energy.measure"].replace("energy", "MHE")
    half = "HS-" if half_space and hidden else ""
    if not hidden and not output:
        return "", 0.0
    layers = "H" if not output else "O" if not hidden else f"H, with O = {output:g}"
    return f"{half}{name} ({layers})", float(hidden or output)
