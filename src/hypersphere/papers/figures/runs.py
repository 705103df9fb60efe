"""Figures of run folders: convergence, energies of layers, learned k, the sweep of λ."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...energy.measures import default_weights
from ...report import line_chart, networks
from ...report.curves import Curve, curve_chart, mean_curve
from ...report.run_files import RunFiles, RunGroup, group_runs, read_runs
from ...report.svg import arrange
from ...train.inference.run import load_run
from ...train.storage.layout import METRICS
from .. import tables
from ..reproduce import results
from .drawing import Drawing

_WIDTH, _COLUMNS = 900, 3  # of pictures with panels
_PANEL_HEIGHT, _LEGEND_ROW = 200, 20
_RECORDED = "pair_energies"  # in the metrics


def run_names(inputs: Sequence[Path]) -> list[str]:
    """Name runs by the ends of their paths, as long as needed to tell them apart."""
    paths = [path.resolve().parts for path in inputs]
    for length in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-length:]) for parts in paths]
        if len({*names}) == len(names):
            return names
    raise ValueError("the same run was given twice")


# ------------------------------------------------------------------------------------------------ convergence


def convergence(inputs: Sequence[Path]) -> Drawing:
    """Draw accuracy, error and loss of runs over the steps, means over seeds with bands (SphereNet, Fig. 3 and 5)."""
    groups = group_runs(read_runs(inputs))
    split, keys = _shared_curves(groups)
    if not keys:
        raise ValueError("the runs have no accuracy or loss in common with two points or more; see --eval_every")
    curves = {key: {group.name: _curve(group, key, split) for group in groups} for key in keys}
    rows = [
        {"run": group.name, "seeds": len(group.runs), "last step": int(curves[keys[0]][group.name].steps[-1])}
        | {f"{split} {_unit(key)}": float(curves[key][group.name].mean[-1]) for key in keys}
        for group in groups
    ]
    top, title, low = _height(420, len(groups)), "Convergence", _PANEL_HEIGHT + 60
    panels = []
    for i, key in enumerate(keys):
        width = _WIDTH / max(1, len(keys) - 1) if i else _WIDTH
        name = f"{'' if i else f'{title}: '}{split} {key} over the steps"
        height = low if i else top
        chart = curve_chart(curves[key], title=name, ylabel=_unit(key), legend=not i, width=width, height=height)
        panels.append((width * max(0, i - 1), top if i else 0.0, chart))
    return Drawing(arrange(panels, title, _WIDTH, top + (low if keys[1:] else 0)), rows)


def _unit(key: str) -> str:
    return key if key == "loss" else f"{key}, %"


def _curve(group: RunGroup, key: str, split: str) -> Curve:
    """Return the mean of a metric over the seeds; accuracy and error are in percent."""
    if key == "loss":
        return mean_curve([run.points(key, split) for run in group.runs])
    accuracies = [run.points("accuracy", split) for run in group.runs]
    if key == "error":
        accuracies = [{step: 1 - value for step, value in points.items()} for points in accuracies]
    return mean_curve(accuracies, 100.0)


def _shared_curves(groups: Sequence[RunGroup]) -> tuple[str, list[str]]:
    """Return the split and the metrics that all runs have, with two points or more: test or validation data first."""
    runs = [run for group in groups for run in group.runs]
    for key in ("accuracy", "loss"):
        for split in ("test", "validation", "train"):
            has = {name: all(len(run.points(name, split)) >= 2 for run in runs) for name in ("accuracy", "loss")}
            if has[key]:
                return split, [*(["accuracy", "error"] if has["accuracy"] else []), *(["loss"] if has["loss"] else [])]
    return "", []


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
    layers = [name for name in recorded[0] if all(name in energies for energies in recorded)]
    if not layers:
        raise ValueError(f"the runs have no hidden layer in common whose {_RECORDED} are in {METRICS}")
    curves = {
        name: {
            group.name: mean_curve([_energies(run, [name] if name else layers) for run in group.runs])
            for group in groups
        }
        for name in ("", *layers)
    }
    split, keys = _shared_curves(groups)
    wide, top = _WIDTH / 2 if "error" in keys else _WIDTH, _height(380, 2 * len(groups))
    charts = {"Hyperspherical energy of all layers": (curves[""], "energy")}
    if "error" in keys:
        errors = {group.name: _curve(group, "error", split) for group in groups}
        charts[f"{split.capitalize()} error"] = errors, _unit("error")
    panels = [
        (i * wide, 0.0, curve_chart(of_groups, title=title, ylabel=unit, width=wide, height=top))
        for i, (title, (of_groups, unit)) in enumerate(charts.items())
    ]
    column = _WIDTH / _COLUMNS
    for i, name in enumerate(layers):
        chart = curve_chart(curves[name], title=name, xlabel="", legend=False, width=column, height=_PANEL_HEIGHT)
        panels.append((i % _COLUMNS * column, top + i // _COLUMNS * _PANEL_HEIGHT, chart))
    rows = [
        {"run": run, "layer": name or "all", "first": float(curve.mean[0]), "last": float(curve.mean[-1])}
        for name, of_groups in curves.items()
        for run, curve in of_groups.items()
    ]
    note = "Sum of 1/distance over all pairs of neurons on the sphere (s = 1, full space), without the output layer."
    height = top + math.ceil(len(layers) / _COLUMNS) * _PANEL_HEIGHT
    return Drawing(arrange(panels, "Hyperspherical energy", _WIDTH, height), rows, [note])


def _energies(run: RunFiles, layers: Sequence[str]) -> dict[int, float]:
    """Return the sums over layers by the steps at which all were measured."""
    energies = [run.energies(_RECORDED)[name] for name in layers]
    return {
        step: sum(of_layer[step] for of_layer in energies)
        for step in energies[0]
        if all(step in of_layer for of_layer in energies)
    }


# ------------------------------------------------------------------------------------------------ k


def learned_k(inputs: Sequence[Path]) -> Drawing:
    """Draw histograms of the k that a run has learned, layer by layer (SphereNet, Fig. 4)."""
    run = load_run(inputs[0])
    layers = networks.learned_k(run)
    if not layers:
        raise ValueError(f"{run.path} has no learned k: it was not trained with --model.similarity learnable")
    rows = [
        {
            "layer": name,
            "filters": len(k),
            "mean": statistics.mean(k),
            "std": statistics.pstdev(k),
            "lowest": min(k),
            "highest": max(k),
        }
        for name, k in ((name, k.tolist()) for name, k in layers.items())
    ]
    return Drawing(networks.k_chart(layers, "Learned k of the filters of each layer"), rows)


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
    weights = sorted({weight for errors in measured.values() for weight in errors})
    series: dict[str, Any] = {}
    for kind, errors in measured.items():
        means = [statistics.mean(errors[weight]) for weight in sorted(errors)]
        spread = [statistics.stdev(errors[weight]) if len(errors[weight]) > 1 else 0.0 for weight in sorted(errors)]
        series[kind] = (sorted(errors), means, spread) if any(spread) else (sorted(errors), means)
    if plain:
        series["no energy"] = ([weights[0], weights[-1]], [statistics.mean(plain)] * 2)
    chart = line_chart(
        series,
        title="Error over the weight of the energy",
        xlabel="weight λ",
        ylabel="error, %",
        log="x",
        height=_height(420, len(series)),
    )
    rows = [
        {"energy": kind, "λ": weight, "runs": len(errors[weight]), "error (%)": statistics.mean(errors[weight])}
        for kind, errors in [*measured.items(), *([("none", {0.0: plain})] if plain else [])]
        for weight in sorted(errors)
    ]
    return Drawing(chart, rows)


def _errors(inputs: Sequence[Path]) -> Iterable[tuple[Mapping[str, Any], float]]:
    """Yield the settings and the test error of each run, or of each entry of a results file."""
    files = [path for path in inputs if path.is_file()]
    folders = [path for path in inputs if not path.is_file()]
    for run in read_runs(folders) if folders else ():
        accuracy = run.final().accuracy
        if accuracy is None:
            raise ValueError(f"{run.path} has no accuracy")
        yield run.config, 100 - 100 * accuracy
    for path in files:
        table = tables.load(path.stem)
        for entry in results.read(path.parent, path.stem):
            row = table.row(entry.row)
            config = row.full if entry.size == results.FULL else row.small
            if config is not None and "error" in entry.metrics:
                group = {} if config.energy is None else vars(config.energy)
                yield {f"energy.{key}": value for key, value in group.items()}, entry.metrics["error"]


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
