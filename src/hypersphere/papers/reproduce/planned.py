"""The plan of comparisons, results/plan.toml: its runs, what is left of them, and the analysis, paired by seed.

The plan is written and committed before its runs. It holds the hashes of the configs that it compares, and a seal over
what it compares and with which seeds: a plan or a row that has changed since is refused, and so are results of other
configs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from ..._internal.nearest import unknown
from ..._internal.tables import NOTHING, TableResult, TextTable
from .. import tables
from ..table import METRICS, TableRow
from . import results
from .results import SMALL, RunResult, fingerprint, short_hash
from .runner import RowRun, estimate
from .statistics import SIGNIFICANT, Paired, holm, paired

PLAN = "plan.toml"


@dataclass(frozen=True)
class PlannedComparison:
    """One comparison of the plan.

    Attributes:
        name: unique in the plan.
        claim: what the paper says, and where.
        table: of both rows, whose metric is the primary figure.
        baseline, row: of the table.
        metric: the primary figure.
        seeds: of each row; the runs stop there.
        minutes: core-minutes of all its runs, as expected when it was planned.
        configs: hashes of the two rows' configs.
        finished: refuse results that are not complete.
    """

    name: str
    claim: str
    table: str
    baseline: str
    row: str
    metric: str
    seeds: int
    minutes: float
    configs: Sequence[str]
    finished: bool = False

    @property
    def rows(self) -> tuple[TableRow, TableRow]:
        table = tables.load(self.table)
        return table.row(self.baseline), table.row(self.row)


@dataclass(frozen=True)
class ResultsPlan:
    """Comparisons in the order of their runs; the seeds of each begin with `first_seed`."""

    first_seed: int
    comparisons: Sequence[PlannedComparison]

    def seeds(self, comparison: PlannedComparison) -> range:
        return range(self.first_seed, self.first_seed + comparison.seeds)

    def chosen(self, names: Sequence[str]) -> list[PlannedComparison]:
        """Return the comparisons of these names, all of them for none. ValueError if there is no such name."""
        by_name = {comparison.name: comparison for comparison in self.comparisons}
        for name in names:
            if name not in by_name:
                raise ValueError(unknown("comparison", name[:100], by_name))
        return [comparison for comparison in self.comparisons if not names or comparison.name in names]


def read(folder: Path) -> ResultsPlan:
    """Read the plan of a results folder. ValueError if it is malformed or was changed, or if a row was."""
    file = folder / PLAN
    if not file.is_file():
        raise ValueError(f"there is no plan: {file}")
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
        entries = [PlannedComparison(**entry) for entry in tree["comparison"]]
        plan = ResultsPlan(tree["first_seed"], entries)
        _check(file, plan)
        if (now := seal(plan)) != tree["seal"]:
            raise ValueError(f"{file} has changed since it was sealed: seal = {tree['seal']!r}, now {now!r}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is malformed: {type(error).__name__}: {error}") from None
    return plan


def seal(plan: ResultsPlan) -> str:
    """Hash what a plan compares, what it claims and which seeds it runs; not the minutes, nor what is finished."""
    left_out = {"minutes", "finished"}
    entries = [{k: v for k, v in vars(one).items() if k not in left_out} for one in plan.comparisons]
    return short_hash(plan.first_seed, entries)


def _check(file: Path, plan: ResultsPlan) -> None:
    names = [comparison.name for comparison in plan.comparisons]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{file}: {', '.join(sorted(twice))} is there twice")
    for comparison in plan.comparisons:
        where = f"{file}: {comparison.name}"
        try:
            table = tables.load(comparison.table)
            rows = comparison.rows
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        if comparison.metric != table.metric:
            raise ValueError(f"{where}: {comparison.table} is compared by {table.metric}, got {comparison.metric!r}")
        if comparison.seeds < 2:
            raise ValueError(f"{where}: seeds must be at least 2, got {comparison.seeds}")
        for row, planned in zip(rows, comparison.configs, strict=False):
            if (now := fingerprint(table, row, SMALL)) != planned:
                raise ValueError(f"{where}: {row.name} has changed since it was planned: {planned}, now {now}")
        if len(comparison.configs) != len(rows):
            raise ValueError(f"{where}: configs must have the hashes of the 2 rows, got {len(comparison.configs)}")


def finished_runs(plan: ResultsPlan, comparison: PlannedComparison, folder: Path) -> tuple[dict[int, RunResult], ...]:
    """Return the planned runs of both rows by seed. ValueError if one is of another config than the plan's."""
    stored, runs = results.read(folder, comparison.table), []
    for row, config in zip(comparison.rows, comparison.configs, strict=True):
        own = [run for run in stored if (run.row, run.size) == (row.name, SMALL) and run.seed in plan.seeds(comparison)]
        if other := [run.seed for run in own if run.config != config]:
            raise ValueError(f"{comparison.table} {row.name} seed {other[0]} was run with another config than planned")
        runs.append({run.seed: run for run in own})
    return tuple(runs)


# ------------------------------------------------------------------------------------------------- runs


def missing(plan: ResultsPlan, folder: Path, names: Sequence[str] = ()) -> list[RowRun]:
    """Return the runs without a result, one comparison after the other, both rows of a seed before the next seed.

    Args:
        names: only these comparisons.
    """
    tasks: dict[tuple[str, str, int], RowRun] = {}
    for comparison in plan.chosen(names):
        both = finished_runs(plan, comparison, folder)
        for seed in plan.seeds(comparison):
            for row, runs in zip(comparison.rows, both, strict=True):
                key = comparison.table, row.name, seed
                if seed not in runs:
                    tasks[key] = RowRun(*key, SMALL, _minutes(comparison, row, both))
    return [*tasks.values()]


def _minutes(comparison: PlannedComparison, row: TableRow, both: Sequence[Mapping[int, RunResult]]) -> float:
    """Estimate the core-minutes of one run from the runs of both rows, else as the table states."""
    measured = {one.name: [*runs.values()] for one, runs in zip(comparison.rows, both, strict=True)}
    return estimate(tables.load(comparison.table), row, measured)


# ------------------------------------------------------------------------------------------------- analysis


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A comparison with what was measured.

    Attributes:
        done: seeds that both rows have.
        left: core-minutes of the runs that are missing, estimated.
        paper: the difference that the paper prints.
        means: of both rows.
        effect: the mean difference row − baseline over the seeds, with its interval and p-value; None while seeds are
            missing and if a run diverged.
        corrected: the p-value after Holm's correction for all comparisons of the plan.
        verdict: better, worse, undecided, running or diverged.
    """

    comparison: PlannedComparison
    done: int
    left: float
    paper: float | None
    means: Sequence[float] | None = None
    effect: Paired | None = None
    corrected: float | None = None
    verdict: str


def judge(plan: ResultsPlan, folder: Path) -> list[Judged]:
    """Analyse the plan: complete comparisons are tested, the others are not looked at.

    ValueError if a comparison is called finished and seeds are missing. In Holm's correction, a comparison that is not
    tested yet counts as one with p = 1: its result can only lower the corrected p-values of the others.
    """
    tested = [_measure(plan, comparison, folder) for comparison in plan.comparisons]
    corrected = holm([1.0 if one is None or one.p is None else one.p for *_, one in tested])
    return [
        _judged(plan, comparison, both, effect, p)
        for comparison, (both, effect), p in zip(plan.comparisons, tested, corrected, strict=True)
    ]


Runs = Sequence[Mapping[int, RunResult]]


def _measure(plan: ResultsPlan, comparison: PlannedComparison, folder: Path) -> tuple[Runs, Paired | None]:
    """Return the runs of both rows and, if they are complete, the difference."""
    both, seeds = finished_runs(plan, comparison, folder), plan.seeds(comparison)
    complete = _is_complete(plan, comparison, both)
    if comparison.finished and not complete:
        raise ValueError(f"{PLAN}: {comparison.name} is called finished, but seeds are missing")
    if not complete or any(run.failed for runs in both for run in runs.values()):
        return both, None
    one, other = ([float(runs[seed].metrics[comparison.metric]) for seed in seeds] for runs in both)
    return both, paired(one, other)


def _is_complete(plan: ResultsPlan, comparison: PlannedComparison, both: Runs) -> bool:
    return all(seed in runs for runs in both for seed in plan.seeds(comparison))


def _judged(plan: ResultsPlan, comparison: PlannedComparison, both: Runs, effect: Paired | None, p: float) -> Judged:
    (base, row), (first, second) = comparison.rows, both
    judged = Judged(
        comparison=comparison,
        done=len(first.keys() & second.keys()),
        left=sum(
            (comparison.seeds - len(runs)) * _minutes(comparison, one, both)
            for one, runs in zip(comparison.rows, both, strict=True)
        ),
        paper=None if row.reported is None or base.reported is None else row.reported - base.reported,
        verdict="diverged" if _is_complete(plan, comparison, both) else "running",
    )
    if effect is None:
        return judged
    better = "better" if (effect.mean > 0) == METRICS[comparison.metric].more_is_better else "worse"
    return replace(
        judged,
        means=tuple(fmean(run.metrics[comparison.metric] for run in runs.values()) for runs in both),
        effect=effect,
        corrected=p,
        verdict=better if effect.p is not None and p < SIGNIFICANT else "undecided",
    )


@dataclass(frozen=True, repr=False)
class PlanStatus(TableResult):
    """The plan with what was measured; `left` are the core-minutes of the missing runs, each counted once."""

    rows: Sequence[Judged]
    runs: int
    missing: int
    left: float

    def text_table(self) -> TextTable:
        """Return the comparisons as cells: effect and interval first, then p."""
        header = ["comparison", "rows", "effect, 95 % interval", "in the paper", "p", "p, Holm", "verdict"]
        return TextTable(header, [_cells(judged) for judged in self.rows], left=2)

    def tables(self) -> list[TextTable]:
        return [self.text_table()]

    def notes(self) -> list[str]:
        done = f"{self.runs - self.missing} of {self.runs} runs are finished"
        return [f"{done}; the others take about {self.left / 60:.1f} core-hours." if self.missing else f"{done}."]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def status(plan: ResultsPlan, folder: Path, names: Sequence[str] = ()) -> PlanStatus:
    """Return the analysis of the plan, or of these comparisons of it, and what is left to run."""
    chosen, left = plan.chosen(names), missing(plan, folder, names)
    every = {(one.table, row, seed) for one in chosen for row in (one.baseline, one.row) for seed in plan.seeds(one)}
    rows = [judged for judged in judge(plan, folder) if judged.comparison in chosen]
    return PlanStatus(rows, len(every), len(left), sum(task.minutes for task in left))


def _cells(judged: Judged) -> list[str]:
    comparison, effect = judged.comparison, judged.effect
    named = [comparison.name, f"{comparison.baseline} → {comparison.row.rpartition('/')[2]}"]
    paper = NOTHING if judged.paper is None else f"{judged.paper:+.2f}"
    if effect is None:
        seeds = f"{judged.verdict}: {judged.done} of {comparison.seeds} seeds"
        return [*named, NOTHING, paper, NOTHING, NOTHING, seeds]
    interval = "" if effect.interval is None else f" ± {effect.interval:.2f}"
    p_values = [NOTHING if p is None else f"{p:.2g}" for p in (effect.p, judged.corrected)]
    return [*named, f"{effect.mean:+.2f}{interval}", paper, *p_values, judged.verdict]
