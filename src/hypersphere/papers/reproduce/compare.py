"""Compare measured values with the paper's: means over seeds, and whether the order of the rows agrees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..._internal.tables import NOTHING, TableResult, TextTable, number
from .. import tables
from ..table import METRICS, PaperTable
from . import results
from .results import FULL, SMALL, RunResult
from .runner import can_run, done, estimate, size_of
from .statistics import SIGNIFICANT, agreement, confidence, mean_and_deviation, welch

CLIPPED = (
    "Gradient norms are clipped at 1, which the paper does not say; its released code bounds gradients by the loss "
    "log(softmax + 1e-4)."
)
LIMITED = "The gradient of the energy by a neuron is limited to the neuron's length, which the paper does not say."
LABELS = {
    "few_shot": "accuracy of 5-way 5-shot episodes",
    "class0_accuracy": "accuracy of class 0",
    "class0_error": "error of class 0",
    "score": "score, more is better",
}
COUNTS = ("steps", "parameters")  # metrics that are whole numbers


@dataclass(frozen=True)
class TableStatus:
    """How much of a table has been run, at one size.

    Attributes:
        rows: all rows of the table.
        sized: how many of them exist at this size.
        runs, done: of these rows.
        cost, minutes: core-minutes of all runs, and of those left; None if unknown.
    """

    table: str
    title: str
    runs: int
    done: int
    cost: float | None
    minutes: float | None
    rows: list[str]
    sized: int


def overview(folder: Path, full: bool) -> list[TableStatus]:
    """Return how much of each table has been run."""
    stored = results.read_all(folder, skip_damaged=True)
    return [_status(name, stored, size_of(full)) for name in tables.TABLES]


def _status(name: str, stored: Mapping[str, Sequence[RunResult]], size: str) -> TableStatus:
    table = tables.load(name)
    rows = [row for row in table.rows if can_run(row, size)]
    finished = done(name, stored, size)
    left = {row.name: max(0, row.seeds - len(finished[row.name])) for row in rows}
    known = size == SMALL or any(finished.values())
    costs = {row.name: estimate(table, row, finished) for row in rows}
    runs = sum(row.seeds for row in rows)
    return TableStatus(
        table=name,
        title=table.title,
        runs=runs,
        done=runs - sum(left.values()),
        cost=sum(row.seeds * costs[row.name] for row in rows) if known else None,
        minutes=sum(left[name] * cost for name, cost in costs.items()) if known else None,
        rows=[row.name for row in table.rows],
        sized=len(rows),
    )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A metric of a row over its seeds.

    Attributes:
        reported: the paper's value; None if it prints none.
        mean, deviation: over the runs that have it; None: of no run, of a single one.
        seeds: runs.
        reached: runs that have it; of steps to a target, those that reached the target.
        failed: runs that diverged.
        exists: at this size.
    """

    metric: str
    reported: float | None
    mean: float | None
    deviation: float | None
    seeds: int
    reached: int
    failed: int = 0
    exists: bool = True

    def reported_text(self) -> str:
        """Format the paper's value."""
        return rounded(self.reported, self.metric)

    def text(self) -> str:
        """Format the mean and deviation."""
        if not self.seeds:
            return NOTHING if self.exists else "only --full"
        if self.failed:
            return f"diverged ({self.failed} of {self.seeds})"
        if self.reached < self.seeds:
            return f"not reached ({self.seeds - self.reached} of {self.seeds})"
        deviation = "" if self.deviation is None else f" ± {_short(self.deviation, self.metric)}"
        return rounded(self.mean, self.metric) + deviation

    def text_beside_reported(self) -> str:
        """Format the mean and deviation, with the paper's value in parentheses, if it prints one."""
        if 0 < self.reached < self.seeds:
            return f"{rounded(self.mean, self.metric)} ({self.reached} of {self.seeds} reached it)"
        return self.text() + ("" if self.reported is None else f" (paper {self.reported_text()})")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A row against the first of its column.

    Attributes:
        value: the difference of the means.
        interval: half the width of its 95 % confidence interval; None with a single seed.
        p: Welch's p-value; None with a single seed.
        verdict: "better", "worse", "undecided", or "" with a single seed.
    """

    value: float
    interval: float | None
    p: float | None
    verdict: str

    def decision(self) -> str:
        """Format the result of the test over seeds."""
        if self.p is None:
            return "one seed cannot decide"
        return f"{self.verdict} ({f'p = {self.p:.2g}' if self.p >= 1e-4 else 'p < 0.0001'})"


@dataclass(frozen=True, kw_only=True)
class ComparedRow(Measured):
    """A row of a table with what was measured.

    Attributes:
        values: of each run that has the metric.
        seconds: of the runs that were made for this table.
        against: the first row of the column; None for that row itself, and if either has runs without the metric.
        also: further metrics.
    """

    name: str
    values: list[float]
    seconds: float
    against: Difference | None
    also: dict[str, Measured]
    note: str

    def against_text(self) -> str:
        """Format how the row compares with the first of its column."""
        if self.against is None:
            return NOTHING
        is_percent = METRICS[self.metric].unit == "%"
        value = f"{self.against.value:+.2f}" if is_percent else _short(self.against.value, self.metric, "+")
        return f"{value}, {self.against.decision()}" if self.against.verdict else value


@dataclass(frozen=True, repr=False)
class TableComparison(TableResult):
    """A table of a paper with what was measured.

    Attributes:
        what: the metric in words, with its unit.
        size: "full" or "small".
        reduced, differs: how the configs of each size differ from the paper's.
        order: pairs of rows that the paper orders, by whether they have the same order here.
        summary: the same in one sentence.
    """

    table: str
    title: str
    metric: str
    what: str
    unit: str
    size: str
    reduced: str
    differs: str
    rows: list[ComparedRow]
    order: dict[str, int]
    summary: str

    def measured_rows(self) -> list[ComparedRow]:
        """Return the rows that have been run."""
        return [row for row in self.rows if row.seeds]

    def text_table(self, rows: Sequence[ComparedRow]) -> TextTable:
        """Return rows as cells: what the paper reports, what was measured, further metrics."""
        names = [
            name
            for name in (rows[0].also if rows else ())
            if any(row.also[name].seeds or row.also[name].reported is not None for row in rows)
        ]
        further = [describe_metric(tables.load(self.table), name) for name in names]
        lines = [
            [
                *(row.name, row.reported_text(), row.text(), str(row.seeds or NOTHING), row.against_text()),
                *(row.also[name].text_beside_reported() for name in names),
            ]
            for row in rows
        ]
        return TextTable(["row", "paper", "measured", "seeds", "against the first row", *further], lines)

    def tables(self) -> list[TextTable]:
        return [self.text_table(self.rows)]

    def notes(self) -> list[str]:
        return [f"{row.name}: {row.note}" for row in self.rows if row.note] + ([self.summary] if self.summary else [])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(name: str, folder: Path, full: bool = False, only: Sequence[str] = ()) -> TableComparison:
    """Return a table with the paper's values, the measured means and deviations, and the result of a test over seeds.

    Args:
        only: of these rows, and the first of their columns.
    """
    table, size = tables.load(name), size_of(full)
    chosen = [table.row(wanted) for wanted in only]
    chosen += [table.baseline(row) for row in chosen]
    rows = [row for row in table.rows if not only or row in chosen]
    stored = results.read_all(folder)
    finished = done(name, stored, size)
    own = {id(result) for result in stored.get(name, ())}
    values = {row.name: _values(table.metric, finished[row.name]) for row in table.rows}
    compared = []
    for row in rows:
        base, runs = table.baseline(row), finished[row.name]
        complete = all(len(values[one.name]) == len(finished[one.name]) for one in (row, base))
        compared.append(
            ComparedRow(
                **vars(_measure(table.metric, row.reported, runs)) | {"exists": can_run(row, size)},
                name=row.name,
                values=values[row.name],
                seconds=sum(run.seconds or 0 for run in runs if id(run) in own and run.row == row.name),
                against=_difference(table.metric, values[base.name], values[row.name])
                if complete and row is not base
                else None,
                also={
                    metric: _measure(metric, row.also.get(metric), [run for run in runs if metric in run.metrics])
                    for metric in further_metrics(table)
                },
                note=row.note,
            )
        )
    columns = {row.column: [other for other in rows if other.column == row.column] for row in rows}
    orders = [agreement([row.reported for row in c], [values[row.name] for row in c]) for c in columns.values()]
    order = {key: sum(counts[key] for counts in orders) for key in orders[0]}
    return TableComparison(
        table=name,
        title=table.title,
        metric=table.metric,
        what=describe_metric(table, table.metric),
        unit=METRICS[table.metric].unit,
        size=size,
        reduced=_with_bounds(table, SMALL, table.reduced),
        differs=_with_bounds(table, FULL, table.differs),
        rows=compared,
        order=order,
        summary=_summary(table, order),
    )


def _with_bounds(table: PaperTable, size: str, sentence: str) -> str:
    """Add that the first rows clip gradients, or that a row limits those of the energy."""
    sized = [(row, row.full if size == FULL else row.small) for row in table.rows]
    configs = [(row, config) for row, config in sized if config is not None]
    is_clipped = any(isinstance(config.clip, float) for row, config in configs if table.baseline(row) is row)
    is_limited = any(
        config.loss.energy_weight  # of a head, which has no argument against it
        or config.loss.name == "sphereface_plus"
        or (config.energy is not None and config.energy.limit_gradient)
        for _, config in configs
    )
    return " ".join(filter(None, [sentence, CLIPPED if is_clipped else "", LIMITED if is_limited else ""]))


def describe_metric(table: PaperTable, name: str) -> str:
    """Name a metric with its unit, such as "error (%)"."""
    if name == "steps" and table.target is not None:
        return f"steps to {table.target:g} % validation accuracy"
    unit = METRICS[name].unit if name in METRICS else "%"
    return LABELS.get(name, name.replace("_", " ")) + (f" ({unit})" if unit else "")


def further_metrics(table: PaperTable) -> list[str]:
    """Return the metrics that a table's results show beside its own."""
    of_paper = dict.fromkeys(name for row in table.rows for name in row.also)
    own = "accuracy" if table.metric == "steps" else "steps" if table.target is not None else None
    return [*of_paper, *table.shown, *([own] if own is not None else [])]


def _values(metric: str, runs: Sequence[RunResult]) -> list[float]:
    """Return a metric of the runs that have it; steps: of those that reached the target."""
    having = [run for run in runs if metric in run.metrics]
    if metric == "steps":
        having = [run for run in having if run.metrics[metric] <= run.facts["steps"]]
    return [float(run.metrics[metric]) for run in having]


def _measure(metric: str, reported: float | None, runs: Sequence[RunResult]) -> Measured:
    """Return the mean and deviation of a metric over runs."""
    values = _values(metric, runs)
    mean, deviation = mean_and_deviation(values) if values else (None, None)
    failed = sum(bool(run.failed) for run in runs)
    return Measured(
        metric=metric,
        reported=reported,
        mean=mean,
        deviation=deviation,
        seeds=len(runs),
        reached=len(values),
        failed=failed,
    )


def _difference(metric: str, base: Sequence[float], values: Sequence[float]) -> Difference | None:
    """Compare a row with the first of its column; None if one has no values, or neither direction is better."""
    more_is_better = METRICS[metric].more_is_better
    if not base or not values or more_is_better is None:
        return None
    value = mean_and_deviation(values)[0] - mean_and_deviation(base)[0]
    p = welch(base, values)
    better = "better" if (value > 0) == more_is_better else "worse"
    verdict = "" if p is None else "undecided" if p >= SIGNIFICANT else better
    return Difference(value=value, interval=confidence(base, values), p=p, verdict=verdict)


def _summary(table: PaperTable, order: Mapping[str, int]) -> str:
    """Say in one sentence how the order of the rows compares with the paper's."""
    pairs = sum(order.values())
    if not pairs or METRICS[table.metric].more_is_better is None:
        return ""
    tested = pairs - order["untested"]
    words = f"Pairs of rows that the paper orders: {pairs}"
    if not tested:
        return f"{words}; none was tested: one of the rows has a single seed."
    return (
        f"{words}; tested over seeds: {tested}; in the same order here: {order['same']}, in the opposite one: "
        f"{order['opposite']}, undecided: {order['undecided']} (Welch's test, p < {SIGNIFICANT})."
    )


def rounded(value: float | None, metric: str) -> str:
    """Format a value for a table: counts whole, percentages with two decimals, others with five digits."""
    if value is not None and metric in COUNTS:
        return f"{value:,.0f}"
    is_percent = metric not in METRICS or METRICS[metric].unit == "%"
    return f"{value:.2f}" if value is not None and is_percent else number(value, 5)


def _short(value: float, metric: str, sign: str = "") -> str:
    """Format a deviation or difference: counts and large ones whole, others with two digits."""
    return f"{value:{sign},.0f}" if metric in COUNTS or abs(value) >= 99.5 else f"{value:{sign}.2g}"
