"""Read run folders for a report: config, metrics and result, without loading the networks; group them by config."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .._internal import checks, checksummed_json, safe_files
from .._internal.tables import NOTHING, percent
from ..train.config.convert import flags, flatten
from ..train.storage import layout
from ..train.storage.metrics import MetricsLine, parse_lines
from ..train.storage.records import check_id
from ..train.storage.summary import Summary, read_summary, selection

METRICS = ("accuracy", "loss", "energy", "seconds", "parameters")  # of the summary
PERCENT = ("accuracy", "top5")
Settings = Mapping[str, Any]  # setting such as "model.name" → value; settings that are None are left out
#: settings that runs of one group may differ in; data.root too, unless it is a folder of the user's own images
OF_A_RUN = ("seed", "out", "resume", "data.root")


@dataclass(frozen=True)
class RunFiles:
    """The files of one run.

    Attributes:
        path: the folder.
        name: unique among the runs of a report.
        config: its settings.
        lines: of metrics.jsonl.
        result: of result.json; None if the run has not finished.
    """

    path: Path
    name: str
    config: Settings
    lines: Sequence[MetricsLine]
    result: Summary | None

    def shared_settings(self) -> Settings:
        """Return the settings that all runs of a group have in common."""
        is_own = self.config.get("data.name") == "image_folder"
        return {
            key: value for key, value in self.config.items() if key not in OF_A_RUN or (is_own and key == "data.root")
        }

    def final(self) -> Summary | MetricsLine:
        """Return the result; of an unfinished run the last evaluation, or the last line."""
        if self.result is not None:
            return self.result
        evaluated = [line for line in self.lines if line.split != "train"]
        return (evaluated or self.lines)[-1]

    def early_end(self) -> tuple[str, int] | None:
        """Return what ended the run early, "diverged" or "not finished", and its last step."""
        broken = [line.step for line in self.lines if line.diverged or line.values.get("loss", 0.0) is None]
        if broken:
            return "diverged", broken[0]
        if self.result is None:
            return "not finished", self.lines[-1].step
        if self.result.diverged:  # it ends at chance; its loss was highest where it went wrong
            losses = self.points("loss", "train")
            return "diverged", max(losses, key=losses.__getitem__) if losses else self.result.step
        return None

    def points(self, key: str, split: str) -> dict[int, float]:
        """Return a metric of a split by step, where it is a number."""
        values = {line.step: line.values.get(key) for line in self.lines if line.split == split}
        return {step: value for step, value in values.items() if value is not None}

    def energies(self, key: str = "energies") -> dict[str, dict[int, float]]:
        """Return the energies by layer and step: "energies" of the run's own kind, or "pair_energies" (OPT, Fig. 6)."""
        layers: dict[str, dict[int, float]] = {}
        for line in self.lines:
            for name, value in getattr(line, key).items():
                if value is not None:
                    layers.setdefault(name, {})[line.step] = value
        return layers

    def metric(self, key: str) -> float | None:
        """Return the last value of one of METRICS; None if there is none."""
        if key == "energy":
            energies = [value for value in self.final().energies.values() if value is not None]
            return sum(energies) if energies else None
        if key == "parameters":
            return None if self.result is None else self.result.parameters.get("trained")
        value: float | None = getattr(self.result or (self.lines[-1] if key == "seconds" else self.final()), key)
        return value


class Statistic(NamedTuple):
    """A metric over runs; the standard deviation where there are several."""

    mean: float | None
    std: float | None = None


@dataclass(frozen=True)
class RunGroup:
    """Runs whose configs are equal but for the seed."""

    name: str
    runs: list[RunFiles]

    @property
    def config(self) -> Settings:
        return self.runs[0].shared_settings()

    @property
    def split(self) -> str | None:
        """The split of the metrics; None if runs differ in it."""
        splits = {run.final().split for run in self.runs}
        return splits.pop() if len(splits) == 1 else None

    @property
    def selection(self) -> str:
        """How the accuracy was chosen among the evaluations, in words; "" if it is of the last one."""
        chosen = [text for run in self.runs if (text := selection(run.result, run.lines))]
        return chosen[0] if len(self.runs) == 1 and chosen else "best evaluation of each run" if chosen else ""

    def name_of(self, run: str) -> str:
        """Name a run of the group, as charts of single runs do."""
        if len(self.runs) == 1:
            return self.name
        return run if run.startswith(self.name) else f"{self.name} ({run})"

    def metric(self, key: str) -> Statistic:
        """Return mean and standard deviation over the runs that have it."""
        values = [value for run in self.runs if (value := run.metric(key)) is not None]
        if not values:
            return Statistic(None)
        return Statistic(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def format_metric(key: str, value: Statistic) -> str:
    """Format a metric as mean ± standard deviation."""
    if value.mean is None:
        return NOTHING
    if key in PERCENT:
        return " ± ".join(percent(number) for number in value if number is not None)
    if key == "parameters":
        return f"{value.mean:,.0f}"
    form = ".1f" if key == "seconds" else ".4f" if abs(value.mean) < 1e4 else ".4g"
    return " ± ".join(f"{number:{form}}" for number in value if number is not None)


def with_unit(key: str) -> str:
    """Name a metric at an axis."""
    return key.replace("_", " ") + (" %" if key in PERCENT else "")


def read_runs(paths: Iterable[str | os.PathLike[str]]) -> list[RunFiles]:
    """Read run folders. ValueError in one line if one of them is none, or has no metrics yet."""
    folders = list(dict.fromkeys(Path(path) for path in paths))
    if not folders:
        raise ValueError("at least one run folder is needed")
    for folder in folders:
        safe_files.check_folder(folder)  # before resolving, which fails for a loop of links
    names = _names(folders)
    return [_read(folder, name) for folder, name in zip(folders, names, strict=True)]


def _read(path: Path, name: str) -> RunFiles:
    if not os.path.lexists(path / layout.CONFIG):
        raise ValueError(f"{path} is not a run folder: it has no {layout.CONFIG}")
    try:
        config = checksummed_json.parse(safe_files.read_plain(path / layout.CONFIG))
    except ValueError as error:
        raise ValueError(f"{path / layout.CONFIG} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path / layout.CONFIG} must be an object")
    lines = _lines(path / layout.METRICS)
    if not lines:
        raise ValueError(f"{path} has no metrics: {layout.METRICS} is missing or empty")
    check_id(path, path / layout.METRICS, lines[0].run_id)
    result = read_summary(path) if os.path.lexists(path / layout.RESULT) else None
    settings = {
        key: value
        for key, value in flatten(config).items()
        if value is not None and key not in (checksummed_json.KEY, checksummed_json.RUN_ID)
    }
    return RunFiles(path, name, settings, lines, result)


def _lines(path: Path) -> list[MetricsLine]:
    """Return the lines before the first damaged one. Text after the last newline is still being written."""
    texts = safe_files.read_plain(path).split(b"\n")[:-1] if os.path.lexists(path) else []
    lines = parse_lines(texts)
    if len(lines) < len(texts):
        checks.warn(f"{path} is damaged: {len(lines)} of {len(texts)} lines are read")
    return lines


def _names(folders: Sequence[Path]) -> list[str]:
    """Return what tells the folders apart: their paths below the folder that holds them all."""
    whole = [folder.resolve() for folder in folders]
    common = Path(os.path.commonpath([path.parent for path in whole]))
    return [str(path.relative_to(common)) for path in whole]


# Groups


def group_runs(runs: Sequence[RunFiles]) -> list[RunGroup]:
    """Put runs with equal configs but for the seed into groups, in the order of their first runs."""
    by_settings: dict[str, list[RunFiles]] = {}
    for run in runs:
        key = repr(sorted((name, repr(value)) for name, value in run.shared_settings().items()))
        by_settings.setdefault(key, []).append(run)
    groups = [RunGroup(_group_name([run.name for run in members]), members) for members in by_settings.values()]
    if any(not group.name for group in groups):
        changed, _ = changed_settings(groups)
        groups = [RunGroup(group.name or _settings_name(i, changed), group.runs) for i, group in enumerate(groups)]
    names = [group.name for group in groups]
    return [
        group if group.name and names.count(group.name) == 1 else RunGroup(group.runs[0].name, group.runs)
        for group in groups
    ]


def describe(groups: Sequence[RunGroup]) -> str:
    """Say which networks were trained on which data."""
    names = dict.fromkeys(
        f"{group.config.get('model.name', '?')} on {group.config.get('data.name', '?')}" for group in groups
    )
    return ", ".join(names) if len(names) <= 3 else f"{len(groups)} groups of runs"


def unranked(groups: Sequence[RunGroup]) -> str:
    """Say that groups with accuracies cannot be ranked, as their data differ; "" if they can."""
    keys = ("data.name", "data.labels", "data.root")
    own = [group.config for group in groups if group.metric("accuracy").mean is not None]
    data = dict.fromkeys(" ".join(str(config[key]) for key in keys if config.get(key) is not None) for config in own)
    some = ", ".join([*data][:5]) + (f" and {len(data) - 5} more" if len(data) > 5 else "")
    return f"Accuracies of different data are not ranked: {some}." if len(data) > 1 else ""


def _settings_name(index: int, changed: dict[str, list[Any]]) -> str:
    """Name a group by what sets it apart, such as "lr=0.1"; "" if that is long."""
    name = ", ".join(f"{key.rpartition('.')[2]}={values[index]}" for key, values in changed.items())
    return name if len(name) <= 40 else ""


def _group_name(names: list[str]) -> str:
    """Return what the names begin with, without "seed" and the like at the end; the name of a single run is whole."""
    if len(names) == 1:
        return names[0]
    low, high = min(names), max(names)  # what these two share, all share
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return re.sub(r"((^|[-_/., ]+)(seed|run|s))?[-_=/., ]*\d*$", "", low[:same], flags=re.IGNORECASE)


def differences(groups: Sequence[RunGroup]) -> dict[str, list[Any]]:
    """Return setting → its value in each group, for the settings in which groups differ."""
    keys = sorted({key for group in groups for key in group.config})
    rows = {key: [group.config.get(key) for group in groups] for key in keys}
    return {key: values for key, values in rows.items() if any(value != values[0] for value in values)}


def changed_settings(groups: Sequence[RunGroup]) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Return setting → its value in each group: those in which groups differ, and those that no group has by default.

    Of a part that is switched on, such as rotation, the settings that all have by default are left out but the first.
    """
    fields = flags()
    defaults = {flag.key: flag.field.default for flag in fields}
    first = {key.partition(".")[0]: key for key in (flag.key for flag in reversed(fields)) if "." in key}
    keys = sorted({key for group in groups for key in group.config})
    differ, other = dict[str, list[Any]](), dict[str, list[Any]]()
    for key in keys:
        values = [group.config.get(key) for group in groups]
        is_usual = all(_is_usual(group.config, key, defaults.get(key)) for group in groups)
        if any(value != values[0] for value in values):
            if not is_usual or key in first.values():
                differ[key] = values
        elif not is_usual or key in ("data.name", "model.name"):
            other[key] = values
    return differ, other


def _is_usual(config: Settings, key: str, default: Any) -> bool:
    """Return whether a setting has its default, or belongs to a part that is switched off."""
    value, part = config.get(key), key.partition(".")[0] + "."
    if value is None and part != f"{key}." and not any(name.startswith(part) for name in config):
        return True
    return bool(value == (list(default) if isinstance(default, tuple) else default))


def curve_names(runs: Sequence[RunFiles]) -> list[tuple[str, str]]:
    """Return every (metric, split) that the lines of the runs have, accuracy and loss first."""
    names = dict.fromkeys(
        (key, line.split)
        for run in runs
        for line in run.lines
        for key, value in line.values.items()
        if value is not None
    )
    rank = {key: i for i, key in enumerate(("accuracy", "loss"))}
    order = {"test": 0, "validation": 1, "train": 2}
    return sorted(names, key=lambda pair: (pair[0] not in rank, order.get(pair[1], 3), rank.get(pair[0], 9), *pair))
