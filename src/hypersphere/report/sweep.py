"""Groups of runs over a number, such as accuracy over depth: which number, which lines, their chart and table."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..train.storage.records import is_number
from .chart import Chart
from .curves import Curve, curve_chart
from .linechart import Mark
from .page import Cell, Page
from .run_files import PERCENT, RunGroup, changed_settings, differences, format_metric, unranked, with_unit

FEWEST = 3  # numbers on a line
MOST_GROUPS = 8  # whose mistakes and energies are drawn
_LONGEST = 40  # letters of a line's name that is made of settings


@dataclass(frozen=True)
class Sweep:
    """Groups over a number.

    Attributes:
        key: the setting that is a number.
        lines: name → groups in the order of the number, which differ in it and in `also` only.
        also: other numbers that change along a line, such as a rate chosen for each depth.
    """

    key: str
    lines: Mapping[str, Sequence[RunGroup]]
    also: Sequence[str]

    @property
    def label(self) -> str:
        return self.key.rpartition(".")[2].replace("_", " ")

    @property
    def numbers(self) -> list[Any]:
        """Every number in order."""
        return sorted({group.config[self.key] for group in self.groups})

    @property
    def names(self) -> list[str]:
        return [f"{self.label} {number}" for number in self.numbers]

    def name_of(self, group: RunGroup) -> str:
        return f"{self.label} {group.config[self.key]}"

    @property
    def groups(self) -> list[RunGroup]:
        """The groups of all lines."""
        return [group for line in self.lines.values() for group in line]

    def rest(self, groups: Sequence[RunGroup]) -> list[RunGroup]:
        """Return the groups that are on no line."""
        names = {group.name for group in self.groups}
        return [group for group in groups if group.name not in names]


def find_sweep(groups: Sequence[RunGroup]) -> Sweep | None:
    """Find the number over which groups form lines of three or more; None if there is none.

    Groups of a line have equal settings but for numbers; one of these may tell lines apart. Others may change along the
    lines if each number occurs twice on average: a random search makes no lines. Of several possible numbers it is the
    one with the most groups, the fewest lines and the fewest values.
    """
    changed = differences(groups)
    kinds = [
        tuple("number" if is_number(value) else repr(value) for value in values)
        for values in zip(*changed.values(), strict=True)
    ]
    keys = dict.fromkeys(key for group in groups for key in group.config)
    varied = [key for key in keys if any(map(is_number, changed.get(key, ())))]
    best, found = (0, 0, 0), None
    for key, other in itertools.product(varied, (None, *varied)):
        by_kind: dict[Any, list[RunGroup]] = {}
        for group, kind in zip(groups, kinds, strict=True):
            if is_number(group.config.get(key)):
                by_kind.setdefault((kind, other and _value(group, other)), []).append(group)
        lines = [sorted(line, key=lambda group: group.config[key]) for line in by_kind.values()]
        if max(map(len, lines), default=0) < FEWEST or any(_count(line, key) < len(line) for line in lines):
            continue
        also = [name for name in varied if name != key and any(_count(line, name) > 1 for line in lines)]
        of_lines = list(itertools.chain(*lines))
        rank = (len(of_lines), -len(lines), -_count(of_lines, key))
        if rank > best and (not also or 2 * _count(of_lines, key) <= len(of_lines)):
            best, found = rank, Sweep(key, dict(zip(_names(lines, [key, *also]), lines, strict=True)), also)
    return found


def _value(group: RunGroup, key: str) -> Any:
    value: Any = group.config.get(key)
    return float(value) if is_number(value) else repr(value)


def _count(groups: Sequence[RunGroup], key: str) -> int:
    return len({_value(group, key) for group in groups})


def _names(lines: Sequence[Sequence[RunGroup]], numbers: Sequence[str]) -> list[str]:
    """Name lines by the words that the names of their groups begin with, or else by their settings."""
    for names in (
        [_first_words([group.name for group in line]) for line in lines],
        _setting_names([line[0] for line in lines], numbers),
    ):
        if all(names) and len({*names}) == len(names):
            return names
    return [line[0].name for line in lines]


def _first_words(names: Sequence[str]) -> str:
    words = [re.split(r"((?<!\de)[-_/,\s]+)", name) for name in names]  # 1e-3 is one word
    shared = itertools.takewhile(lambda column: len({*column}) == 1, zip(*words, strict=False))
    return "".join(word for word, *_ in shared).rstrip("-_/, ")


def _setting_names(groups: Sequence[RunGroup], numbers: Sequence[str]) -> list[str]:
    """Name groups by the settings in which they differ, apart from these numbers; a single one by its network."""
    differ = {key: values for key, values in changed_settings(groups)[0].items() if key not in numbers}
    if not differ:
        return [str(group.config.get("model.name", "")) for group in groups]
    named = (", ".join(f"{key}={values[i]}" for key, values in differ.items()) for i in range(len(groups)))
    return [name if len(name) <= _LONGEST else "" for name in named]


def add_sweep(page: Page, sweep: Sweep) -> None:
    """Add a section with accuracy and loss over the number, and a table of the accuracy, or of the loss alone."""
    charts = {key: chart for key in ("accuracy", "loss") if (chart := sweep_chart(sweep, key)) is not None}
    if not charts:
        return
    first = next(iter(charts))
    page.section(f"{first.capitalize()} over {sweep.label}")
    for key, chart in charts.items():
        page.chart(chart, csv=("line", sweep.label, with_unit(key), "standard deviation"))
    if any(len(group.runs) > 1 for group in sweep.groups):
        page.text("Lines are means over the runs of a group, bands one standard deviation to both sides.")
    if sweep.also:
        page.text(f"Along a line, {' and '.join(sweep.also)} changes too: see the settings below.")
    rows = list[list[Cell]]()
    for name, line in sweep.lines.items():
        values = {group.config[sweep.key]: group.metric(first) for group in line}
        cells = {n: (format_metric(first, value), value.mean) for n, value in values.items() if value.mean is not None}
        rows.append([name, *(cells.get(number) for number in sweep.numbers)])
    page.table([sweep.label, *map(str, sweep.numbers)], rows)


def sweep_chart(sweep: Sweep, key: str) -> Chart | None:
    """Draw a metric over the number, with a cross above it where a run diverged; None without values."""
    curves, marks, splits = dict[str, Curve](), list[Mark](), set[str | None]()
    for name, line in sweep.lines.items():
        points = []
        for group in line:
            number, value, scale = group.config[sweep.key], group.metric(key), 100 if key in PERCENT else 1
            if any((end := run.early_end()) and end[0] == "diverged" for run in group.runs):
                marks.append(Mark(name, "diverged", number, math.inf))
            elif value.mean is not None:
                points.append((number, scale * value.mean, scale * (value.std or 0.0)))
                splits.add(group.split)
        if points:
            curves[name] = Curve(*np.array(points, float).T)
    if not curves:
        return None
    return curve_chart(
        curves,
        title=f"{key}, {split}" if len(splits) == 1 and (split := next(iter(splits))) else key,
        xlabel=sweep.label,
        ylabel=with_unit(key),
        log="x" if is_geometric(sweep.numbers) else "",
        names=[*sweep.lines],
        marks=marks,
    )


def is_geometric(numbers: Sequence[float]) -> bool:
    """Return whether the ratios of neighbours are more even than their differences, as those of 6, 12, 24, 48."""
    if len(numbers) < 3 or numbers[0] <= 0:
        return False
    gaps, ratios = [b - a for a, b in pairwise(numbers)], [math.log(b / a) for a, b in pairwise(numbers)]
    return max(ratios) / min(ratios) < max(gaps) / min(gaps)


def choose(groups: Sequence[RunGroup], sweep: Sweep | None) -> tuple[list[RunGroup], str]:
    """Return the groups to draw in detail, and in words which they are: of many, those with the highest accuracy."""
    if len(groups) <= MOST_GROUPS:
        return [*groups], ""
    chosen, words = [*groups], ""
    if sweep is not None:
        best = {max(line, key=_rank).name for line in sweep.lines.values()}
        rest = {group.name for group in sweep.rest(groups)}
        chosen = [group for group in groups if group.name in best | rest]
        words = f"the best of each line over {sweep.label}" + (" and all that are on no line" if rest else "")
    if len(chosen) > MOST_GROUPS and unranked(chosen):
        chosen, words = chosen[:MOST_GROUPS], f"the first {MOST_GROUPS}" + (f" among {words}" if words else "")
    elif len(chosen) > MOST_GROUPS:
        top = {group.name for group in sorted(chosen, key=_rank, reverse=True)[:MOST_GROUPS]}
        chosen = [group for group in groups if group.name in top]
        words = f"the {MOST_GROUPS} best" + (f" among {words}" if words else "")
    return chosen, f"Of {len(groups)} groups, {words} are drawn."


def _rank(group: RunGroup) -> tuple[float, float]:
    """Return what is higher for better groups."""
    accuracy, loss = group.metric("accuracy").mean, group.metric("loss").mean
    return (-1.0 if accuracy is None else accuracy, -math.inf if loss is None else -loss)
