"""The curves on the page about runs: metrics over steps, and the energies of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from .chart import Chart
from .curves import INTERVALS, Curve, curve_chart, mean_curve, panel_chart
from .linechart import Mark
from .page import Page
from .run_files import PERCENT, RunGroup, curve_names, with_unit
from .sweep import Sweep

MAIN = ("loss", "accuracy", "top5")
MOST_LAYERS = 8  # with a line over the steps each; of more, the first and the last step have a line over the layers


def add_curves(
    page: Page, groups: Sequence[RunGroup], sweep: Sweep | None, title: str, is_chosen: Callable[[str], bool]
) -> None:
    """Add a section with a chart for each metric and split.

    Args:
        sweep: its groups have a chart of their own, with a panel for each line and a line for each number.
        is_chosen: whether a metric of this name belongs here.
    """
    rest = groups if sweep is None else sweep.rest(groups)
    parts: list[tuple[str, Sequence[str], Mapping[str, Sequence[RunGroup]]]] = [
        ("", [group.name for group in rest], {"": rest})
    ]
    if sweep is not None:
        by_number = {
            name: [replace(group, name=sweep.name_of(group)) for group in line] for name, line in sweep.lines.items()
        }
        parts.append((f", by {sweep.label}", sweep.names, by_number))
    charts, drawn = list[tuple[Chart, Sequence[str]]](), list[Curve]()
    for key, split in curve_names([run for group in groups for run in group.runs]):
        if not is_chosen(key):
            continue
        label = with_unit(key)
        name = f"{key.replace('_', ' ')}, {split}" if split else key
        columns = ["group", "step", label, "standard deviation"]
        for more, names, panels in parts:
            curves = {panel: found for panel, of in panels.items() if (found := _curves(of, key, split))}
            if all(len(curve.steps) == 1 for found in curves.values() for curve in found.values()):
                continue
            marks = {panel: _marks(panels[panel], key, split) if is_chosen("loss") else [] for panel in curves}
            if more:
                marks = {panel: [mark._replace(what="") for mark in of] for panel, of in marks.items()}  # no room
                chart = panel_chart(curves, title=name + more, ylabel=label, marks=marks, names=names)
                columns = ["line", *columns]
            else:
                chart = curve_chart(curves[""], title=name, ylabel=label, marks=marks[""], names=names)
            charts.append((chart, columns))
            drawn += [curve for found in curves.values() for curve in found.values()]
    if not charts:
        return
    page.section(title)
    for chart, titles in charts:
        page.chart(chart, csv=titles)
    if any(len(group.runs) > 1 for group in groups):
        page.text("Lines are means over the runs of a group, bands one standard deviation to both sides.")
    if any(len(curve.steps) > 4 * INTERVALS for curve in drawn):
        page.text("Of long curves the lowest and the highest point of every interval are drawn, so no peak is lost.")


def _marks(groups: Sequence[RunGroup], key: str, split: str) -> list[Mark]:
    """Return where runs diverged or have not finished, at the last value they had by then."""
    marks = []
    for group in groups:
        for run in group.runs:
            if (end := run.early_end()) is not None:
                before = [value for step, value in run.points(key, split).items() if step <= end[1]]
                value = (100 if key in PERCENT else 1) * before[-1] if before else None
                if value is not None or end[0] == "diverged":
                    name = "" if len(group.runs) == 1 else f" (seed {run.config.get('seed')})"
                    marks.append(Mark(group.name, f"{end[0]}{name}", end[1], value))
    return marks


def _curves(groups: Sequence[RunGroup], key: str, split: str) -> dict[str, Curve]:
    scale, curves = 100 if key in PERCENT else 1, {}
    for group in groups:
        if runs := [points for run in group.runs if (points := run.points(key, split))]:
            curve = mean_curve(runs, scale)
            # of finished runs a single point, such as the test after the end, is in the table of results
            if len(curve.steps) > 1 or any(run.result is None for run in group.runs):
                curves[group.name] = curve
    return curves


def add_energies(page: Page, groups: Sequence[RunGroup], which: str) -> None:
    """Add a chart of the layers' energies for each group; `which` says which groups they are."""
    of_groups = {group.name: _energies(group) for group in groups}
    of_groups = {name: layers for name, layers in of_groups.items() if layers}
    if not of_groups:
        return
    page.section("Energy of the layers")
    page.text(
        "Hyperspherical energy of the neurons of each layer, computed with the energy settings of the run itself: low "
        f"means evenly spread. Compare layers of groups only where these settings are equal. {which}"
    )
    for name, layers in of_groups.items():
        curves, lines, x = (layers, "layer", "step") if len(layers) <= MOST_LAYERS else (_ends(layers), "step", "layer")
        chart = curve_chart(curves, title=name, xlabel=x, ylabel="energy")
        page.chart(chart, csv=(lines, x, "energy", "standard deviation"))


def _energies(group: RunGroup) -> dict[str, Curve]:
    runs = [run.energies() for run in group.runs]
    names = dict.fromkeys(name for layers in runs for name in layers)
    return {name: mean_curve([layers[name] for layers in runs if name in layers]) for name in names}


def _ends(layers: Mapping[str, Curve]) -> dict[str, Curve]:
    """Return the first and the last step's energies over the layers."""
    curves, numbers = [*layers.values()], np.arange(1, len(layers) + 1)
    return {
        f"step {curves[0].steps[end]}": Curve(
            numbers, np.array([curve.mean[end] for curve in curves]), np.array([curve.std[end] for curve in curves])
        )
        for end in (0, -1)
    }
