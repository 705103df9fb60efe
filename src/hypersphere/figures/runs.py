"""Figures of run folders: convergence, energies of layers, learned k, the sweep of λ."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..energy.measures import default_weights
from ..recipes import papers
from ..report import line_chart, networks
from ..report.curves import Curve, mean_curve, thin
from ..report.run_files import Group, RunFiles, group_runs, read_runs
from ..report.svg import PALETTE
from ..reproduce import results
from ..train.inference.run import load_run
from .drawing import Drawing, at, close_svg, open_svg

_WIDTH, _COLUMNS = 900, 3  # of pictures with panels
_PANEL_HEIGHT, _LEGEND_ROW = 200, 20
_BINS = 24


# ------------------------------------------------------------------------------------------------ convergence


def convergence(inputs: Sequence[Path]) -> Drawing:
    """Draw the accuracy of runs over the steps, means over seeds with bands (SphereNet, Fig. 3 and 5)."""
    groups = group_runs(read_runs(inputs))
    split, key = _shared_curve(groups)
    scale, unit = (100.0, "accuracy, %") if key == "accuracy" else (1.0, key)
    curves = {each.name: mean_curve([run.points(key, split) for run in each.runs], scale) for each in groups}
    rows = [
        {"run": name, "seeds": len(group.runs), "last step": int(curve.steps[-1]), f"{split} {unit}": curve.mean[-1]}
        for group, (name, curve) in zip(groups, curves.items(), strict=True)
    ]
    svg = line_chart(
        {name: _series(curve) for name, curve in curves.items()},
        title=f"Convergence: {split} {key} over the steps",
        xlabel="step",
        ylabel=unit,
        height=_height(420, len(curves)),
    )
    return Drawing(svg, [{k: _plain(v) for k, v in row.items()} for row in rows])


def _shared_curve(groups: Sequence[Group]) -> tuple[str, str]:
    """Return the split and figure to draw: accuracy on test or validation data, if all runs have it."""
    runs = [run for group in groups for run in group.runs]
    for key in ("accuracy", "loss"):
        for split in ("test", "validation", "train"):
            if all(len(run.points(key, split)) >= 2 for run in runs):
                return split, key
    raise ValueError("the runs have no accuracy or loss in common with two points or more; see --eval_every")


def _series(curve: Curve) -> tuple[Any, ...]:
    """Return the parts of a line; a band where there are several seeds."""
    kept = thin(curve.mean)
    parts = [curve.steps[kept].tolist(), curve.mean[kept].tolist(), curve.std[kept].tolist()]
    return tuple(parts if curve.std.any() else parts[:2])


def _height(height: float, lines: int) -> float:
    """Make room for a long legend: two lines a row at least."""
    return height + _LEGEND_ROW * max(0, math.ceil(lines / 2) - 3)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


# ------------------------------------------------------------------------------------------------ energy


def energy(inputs: Sequence[Path]) -> Drawing:
    """Draw the energy of every layer over the steps, and their sum (OPT, Fig. 6 and 23)."""
    groups = group_runs(read_runs(inputs))
    runs = [run for group in groups for run in group.runs]
    layers = [name for name in runs[0].energies() if all(name in run.energies() for run in runs)]
    if not layers:
        raise ValueError("the runs have no layer in common whose energy was measured")
    top, title = _height(380, len(groups)), "Hyperspherical energy"
    parts = open_svg(title, _WIDTH, top + math.ceil(len(layers) / _COLUMNS) * _PANEL_HEIGHT, shown=False)
    rows = []
    for i, name in enumerate(["", *layers]):
        curves = {
            group.name: mean_curve([_energies(run, [name] if name else layers) for run in group.runs])
            for group in groups
        }
        series = {each: _series(curve) for each, curve in curves.items()}
        rows += [
            {"run": each, "layer": name or "sum", "first": float(curve.mean[0]), "last": float(curve.mean[-1])}
            for each, curve in curves.items()
        ]
        if not name:
            whole = line_chart(
                series, title=f"{title}, sum of the layers", xlabel="step", ylabel="energy", width=_WIDTH, height=top
            )
            parts.append(at(0, 0, whole))
            continue
        panel = line_chart(series, title=name, width=_WIDTH / _COLUMNS, height=_PANEL_HEIGHT, legend=False)
        parts.append(at((i - 1) % _COLUMNS * _WIDTH / _COLUMNS, top + (i - 1) // _COLUMNS * _PANEL_HEIGHT, panel))
    return Drawing(close_svg(parts), rows, _measures(groups))


def _energies(run: RunFiles, layers: Sequence[str]) -> dict[int, float]:
    """Return the sums over layers by the steps at which all were measured."""
    found = [run.energies()[name] for name in layers]
    return {step: sum(each[step] for each in found) for step in found[0] if all(step in each for each in found)}


def _measures(groups: Sequence[Group]) -> list[str]:
    """Say which energy was measured; a run measures that of its own config."""
    kinds: dict[str, list[str]] = {}
    for group in groups:
        half = " in half space" if group.config.get("energy.half_space") else ""
        angles = " of angles" if group.config.get("energy.angular") else ""
        kind = f"s = {group.config.get('energy.s', 2.0):g}{half}{angles}"
        kinds.setdefault(kind, []).append(group.name)
    if len(kinds) == 1:
        return [f"Mean energy of a pair, {next(iter(kinds))}."]
    each = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items())
    return [f"These runs do not measure the same energy and cannot be compared: {each}."]


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
        table = papers.load(path.stem)
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
