"""The report of runs: one page with their results, settings, curves, energies, neurons and features."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from .._internal.tables import NOTHING
from .._internal.text import one_line
from ..train.inference.run import Run, load_run
from ..train.storage import landscapes, layout
from ..train.storage.records import is_number
from . import networks
from .landscape import add_landscape
from .mistakes import add_mistakes, add_tables, read_predictions
from .page import Cell, Page
from .run_curves import MAIN, add_curves, add_energies
from .run_files import (
    METRICS,
    RunGroup,
    Statistic,
    changed_settings,
    describe,
    differences,
    format_metric,
    group_runs,
    read_runs,
    unranked,
)
from .sweep import MOST_GROUPS, add_sweep, choose, find_sweep

MOST_NETWORKS = 24  # groups whose networks are drawn


def report_runs(runs: Iterable[str | os.PathLike[str]], html: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Summarize runs, and write one HTML page about them.

    Args:
        runs: run folders, finished or not. Runs with equal configs but for the seed are one group.
        html: the file to write; None: only the summary.

    Returns:
        runs (name, path, group and metrics of each), groups (metrics as mean and standard deviation) and differences
        (setting → value of each group).

    Example:
        >>> import tempfile
        >>> from hypersphere.train import Config, fit
        >>> result = fit(Config(steps=2, out=tempfile.mkdtemp()), progress=False)
        >>> report_runs([result.path])["groups"][0]["accuracy"] == result.summary.accuracy
        True
    """
    groups = group_runs(read_runs(runs))
    if html is not None:
        build_page(groups).write(html)
    return summarize(groups)


def summarize(groups: Sequence[RunGroup]) -> dict[str, Any]:
    """Return the metrics of runs and groups, and the settings in which groups differ."""
    of_runs = [
        {"name": run.name, "path": str(run.path), "group": group.name, "seed": run.config.get("seed")}
        | {"finished": run.result is not None, "step": run.lines[-1].step, "split": run.final().split}
        | {key: run.metric(key) for key in METRICS}
        for group in groups
        for run in group.runs
    ]
    of_groups = [
        {"name": group.name, "runs": len(group.runs), "split": group.split}
        | {key: group.metric(key).mean for key in METRICS}
        | {f"{key}_std": group.metric(key).std for key in METRICS}
        for group in groups
    ]
    return {
        "runs": of_runs,
        "groups": of_groups,
        "differences": {
            key: dict(zip([group.name for group in groups], values, strict=True))
            for key, values in differences(groups).items()
        },
    }


def build_page(groups: Sequence[RunGroup]) -> Page:
    """Build the report: pictures, then tables. Networks that cannot be loaded are named in it, with the reason."""
    count = sum(len(group.runs) for group in groups)
    what = f"{_many(count, 'run')} in {_many(len(groups), 'group')} of equal settings but the seed."
    page = Page(describe(groups), f"{_verdict(groups)} {what if count > 1 else ''}")
    sweep = find_sweep(groups)
    if sweep is not None:
        add_sweep(page, sweep)
    chosen, which = choose(groups, sweep)
    panels = sweep if which else None  # so many groups that their curves would crowd one chart
    add_curves(page, groups, panels, "Training and test curves", lambda key: key in MAIN)
    notes = _add_networks(page, groups)
    mistakes, more = read_predictions(chosen)
    notes += more
    add_mistakes(page, mistakes, which)
    add_energies(page, chosen, which)
    notes += _add_landscapes(page, groups)
    add_curves(page, groups, panels, "Other curves", lambda key: key not in MAIN)
    page.section("Results")
    _add_results(page, groups)
    add_tables(page, mistakes)
    page.section("Settings")
    if panels is None:
        _add_settings(page, groups)
    else:
        for part in (panels.groups, panels.rest(groups)):
            _add_settings(page, part, f"{describe(part)}: ")
    page.text(f"All others have their defaults; {layout.CONFIG} in the run folder lists them.")
    if notes:
        page.section("Notes")
        for note in notes:
            page.text(note)
    return page


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


# Results and settings


def _verdict(groups: Sequence[RunGroup]) -> str:
    """Say which group is best, and which runs have not finished."""
    ranked = [group for group in groups if group.metric("accuracy").mean]
    words = []
    if apart := unranked(groups):
        words.append(apart)
    elif ranked:
        best = max(ranked, key=lambda group: group.metric("accuracy").mean or 0.0)
        which = f"{best.split or 'last'} accuracy"
        which = f"Highest {which}" if len(ranked) > 1 else which.capitalize()
        words.append(f"{which}: {best.name}, {_accuracy(best)} ({_many(len(best.runs), 'run')}).")
    ends = [(run, run.early_end()) for group in groups for run in group.runs]
    for state, more in (("diverged", ""), ("not finished", "; their metrics are those of the last evaluation")):
        names = [f"{run.name} at step {end[1]}" for run, end in ends if end is not None and end[0] == state]
        if names:
            some = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            words.append(f"{state.capitalize()}: {some}{more}.")
    return " ".join(words) or "No accuracies."


def _accuracy(group: RunGroup) -> str:
    """Return the accuracy of a group, and how it was chosen among evaluations."""
    accuracy = format_metric("accuracy", group.metric("accuracy"))
    return f"{accuracy} ({group.selection})" if group.selection else accuracy


def _add_results(page: Page, groups: Sequence[RunGroup]) -> None:
    def cell(key: str, value: Statistic) -> Cell:
        return format_metric(key, value), value.mean

    keys = ("loss", "energy", "parameters", "seconds")
    rows: list[list[Cell]] = [
        [
            *(group.name, len(group.runs), group.split or NOTHING),
            (_accuracy(group), group.metric("accuracy").mean),
            *(cell(key, group.metric(key)) for key in keys),
        ]
        for group in groups
    ]
    header = ["group", "runs", "split", "accuracy", "loss", "energy", "trained parameters", "seconds"]
    caption = "Mean ± standard deviation over the runs of a group. Energy is the sum over layers."
    if any(group.selection for group in groups):
        caption += " Validation accuracies are the best of several evaluations, so a little too high."
    page.table(header, rows, caption=caption)
    if len(rows) == sum(len(group.runs) for group in groups):
        return
    of_runs: list[list[Cell]] = []
    for group in groups:
        for run in group.runs:
            end, seed = run.early_end(), run.config.get("seed")
            state = "finished" if end is None else end[0]
            cells = [run.name, group.name, seed if is_number(seed) else _setting(seed), state, run.lines[-1].step]
            of_runs.append([*cells, *(cell(key, Statistic(run.metric(key))) for key in METRICS[:4])])
    page.table(["run", "group", "seed", "state", "step", *METRICS[:4]], of_runs, caption="Every run.")


def _add_settings(page: Page, groups: Sequence[RunGroup], whose: str = "") -> None:
    differ, other = changed_settings(groups)
    if differ:
        header = ["setting", *(group.name for group in groups)]
        rows = [[key, *map(_setting, values)] for key, values in differ.items()]
        if len(groups) > max(len(differ), MOST_GROUPS):  # rows are easier to read than as many columns
            header, *rows = map(list, zip(["group", *header[1:]], *rows, strict=True))
        page.table(header, rows, caption=f"{whose}settings in which groups differ.")
    if other:
        rows = [[key, _setting(values[0])] for key, values in other.items()]
        same = "" if len(groups) == 1 else ", the same in all groups"
        page.table(["setting", "value"], rows, caption=f"{whose}settings that are not the default{same}.")


def _setting(value: Any) -> str:
    if value is None or value == []:
        return NOTHING
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


# Networks


def _add_landscapes(page: Page, groups: Sequence[RunGroup]) -> list[str]:
    """Add the landscapes that `hypersphere landscape` left in the runs; return notes on those that cannot be read."""
    trees, notes = [], []
    for run in (run for group in groups for run in group.runs):
        for file in landscapes.find(run.path):
            try:
                trees.append((run.name, landscapes.read(file)))
            except (OSError, ValueError) as error:
                notes.append(f"{run.name}: {one_line(error)}.")
    if trees:
        page.section("Landscapes")
        for name, tree in trees:
            add_landscape(page, name, tree)
    return notes


def _add_networks(page: Page, groups: Sequence[RunGroup]) -> list[str]:
    """Add the sections that need the networks: of each group, those of its first run that can be loaded.

    Return notes on what could not be drawn.
    """
    loaded, notes = [], []
    for group in groups[:MOST_NETWORKS]:
        run, text = _load(group)
        if run is None:
            notes.append(f"{group.name}: {text}.")
        else:
            loaded.append((group.name_of(text), run))
    if len(groups) > MOST_NETWORKS:
        notes.append(f"The networks of the first {MOST_NETWORKS} groups are drawn, of {len(groups)}.")

    _add_neurons(page, loaded)
    learned = [(name, layers) for name, run in loaded if (layers := networks.learned_k(run))]
    if learned:
        page.section("Learned similarities")
        page.text("Histograms of the learned k of the sigmoid similarity, one k for each filter.")
        for name, layers in learned:
            page.chart(networks.k_chart(layers, name), wide=len(layers) > 2)

    charts = []
    for name, run in loaded:
        try:
            if (size := networks.feature_size(run)) is not None:
                charts.append(networks.feature_chart({name: networks.features(run, None, size)}, run.labels))
        except (OSError, ImportError, ValueError) as error:
            notes.append(f"{name}: its features are not drawn: {one_line(error)}.")
    if charts:
        page.section("Features")
        page.text(
            f"Up to {networks.MOST_SAMPLES:,} samples of the test split by their embedding, coloured by class. Lines "
            "from the origin are the directions of the class weights; their length is not the weights'."
        )
        for chart in charts:
            page.chart(chart)
    return notes


def _add_neurons(page: Page, loaded: Sequence[tuple[str, Run]]) -> None:
    """Add a chart for all networks with layers of equal sizes, and spheres of neurons with up to 3 dimensions."""
    of_sizes: dict[tuple[int, ...], dict[str, Mapping[str, Tensor]]] = {}
    few = {}
    for name, run in loaded:
        layers = {k: m for k, m in networks.neurons(run).items() if len(m) > 1 and bool(m.isfinite().all())}
        few[name] = {k: m for k, m in layers.items() if m.shape[1] <= 3}
        if layers:
            of_sizes.setdefault(tuple(size for m in layers.values() for size in m.shape), {})[name] = layers
    if of_sizes:
        page.section("Neurons on the sphere")
        page.text(
            "How far a neuron is from the nearest other one of its layer, on average: the larger, the more evenly the "
            "neurons are spread. Runs with layers of equal sizes share a chart, with as many random directions."
        )
    for alike in of_sizes.values():
        page.chart(networks.evenness_chart(alike), csv=("group", "layer", "angle"))
    if any(few.values()):
        page.text(
            "Directions w/‖w‖ of neurons with up to 3 dimensions. Click a layer in the legend to show or hide it; drag "
            "or press arrow keys to turn."
        )
    for name, exact in few.items():
        if exact:
            page.chart(networks.neurons_chart(exact, name))


def _load(group: RunGroup) -> tuple[Run | None, str]:
    """Return the first run that can be loaded and its name, or None and the reason."""
    problem = ""
    for run in group.runs:
        try:
            return load_run(run.path), run.name
        except (OSError, ImportError, ValueError) as error:
            problem = problem or f"its network is not drawn: {one_line(error)}"
    return None, problem


__all__ = ["build_page", "format_metric", "report_runs", "summarize"]
