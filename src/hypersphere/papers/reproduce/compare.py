"""Compare measured figures with the paper's: means over seeds, and whether the order of the rows agrees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import tables
from ..table import FIGURES, Table
from ..table import Row as RecipeRow
from . import results
from .results import FULL, SMALL, Entry
from .runner import can_run, done, estimate, form_of
from .statistics import SIGNIFICANT, agreement, confidence, mean_and_deviation, welch

Row = dict[str, Any]
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
COUNTS = ("steps", "parameters")  # figures that are whole numbers


def overview(folder: Path, full: bool) -> list[Row]:
    """Return how many runs of each table are done, and the core-minutes of all and of those left; None if unknown."""
    found = results.read_all(folder, skip_damaged=True)
    return [_overview(name, found, form_of(full)) for name in tables.TABLES]


def _overview(name: str, found: Mapping[str, Sequence[Entry]], form: str) -> Row:
    table = tables.load(name)
    rows = [row for row in table.rows if can_run(row, form)]
    finished = done(name, found, form)
    left = {row.name: max(0, row.seeds - len(finished[row.name])) for row in rows}
    known = form == SMALL or any(finished.values())
    costs = {row.name: estimate(table, row, finished) for row in rows}
    runs = sum(row.seeds for row in rows)
    return {
        "table": name,
        "title": table.title,
        "runs": runs,
        "done": runs - sum(left.values()),
        "cost": sum(row.seeds * costs[row.name] for row in rows) if known else None,
        "minutes": sum(left[name] * cost for name, cost in costs.items()) if known else None,
        "rows": [row.name for row in table.rows],
        "sized": len(rows),
    }


def compare(name: str, folder: Path, full: bool = False, only: Sequence[str] = ()) -> Row:
    """Return a table with the paper's figures, the measured means and deviations, and what a test over seeds says.

    Args:
        only: of these rows, and the first of their columns.
    """
    table, form = tables.load(name), form_of(full)
    chosen = [table.row(each) for each in only]
    kept = [
        row for row in table.rows if not only or row in chosen or any(row is table.baseline(each) for each in chosen)
    ]
    found = results.read_all(folder)
    finished = done(name, found, form)
    own = {id(entry) for entry in found.get(name, ())}
    values = {row.name: _values(table.figure, finished[row.name]) for row in table.rows}
    rows = []
    for row in kept:
        base, entries = table.baseline(row), finished[row.name]
        mean, deviation = mean_and_deviation(values[row.name]) if values[row.name] else (None, None)
        compared = row is not base and all(len(values[each.name]) == len(finished[each.name]) for each in (row, base))
        rows.append(
            {
                "row": row.name,
                "runs": can_run(row, form),
                "figure": table.figure,
                "paper": row.paper,
                "mean": mean,
                "deviation": deviation,
                "values": values[row.name],
                "seeds": len(entries),
                "failed": sum(bool(each.failed) for each in entries),
                "reached": len(values[row.name]),
                "seconds": sum(each.seconds or 0 for each in entries if id(each) in own and each.row == row.name),
                **_against(table.figure, values[base.name] if compared else [], values[row.name]),
                "also": {name: _also(name, row, entries) for name in further_figures(table)},
                "note": row.note,
            }
        )
    columns = {row.column: [each for each in kept if each.column == row.column] for row in kept}
    found_in = [agreement([row.paper for row in c], [values[row.name] for row in c]) for c in columns.values()]
    counts = {key: sum(each[key] for each in found_in) for key in found_in[0]}
    return {
        "table": name,
        "title": table.title,
        "figure": table.figure,
        "what": described(table, table.figure),
        "unit": FIGURES[table.figure][0],
        "form": form,
        "reduced": _with_bounds(table, SMALL, table.reduced),
        "differs": _with_bounds(table, FULL, table.differs),
        "rows": rows,
        "order": counts,
        "summary": _summary(table, counts),
    }


def _with_bounds(table: Table, form: str, words: str) -> str:
    """Add to how a form differs that the first rows clip gradients, or that a row limits those of the energy."""
    both = [(row, row.full if form == FULL else row.small) for row in table.rows]
    configs = [(row, config) for row, config in both if config is not None]
    is_clipped = any(isinstance(config.clip, float) for row, config in configs if table.baseline(row) is row)
    is_limited = any(
        config.loss.energy_weight  # of a head, which has no argument against it
        or config.loss.name == "sphereface_plus"
        or (config.energy is not None and config.energy.limit_gradient)
        for _, config in configs
    )
    return " ".join(filter(None, [words, CLIPPED if is_clipped else "", LIMITED if is_limited else ""]))


def described(table: Table, name: str) -> str:
    """Name a figure with its unit, such as "error (%)"."""
    if name == "steps" and table.target is not None:
        return f"steps to {table.target:g} % validation accuracy"
    unit = FIGURES.get(name, ("%", None))[0]
    return LABELS.get(name, name.replace("_", " ")) + (f" ({unit})" if unit else "")


def further_figures(table: Table) -> list[str]:
    """Return the figures that a table's results show beside its own."""
    of_paper = dict.fromkeys(name for row in table.rows for name in row.also)
    own = "accuracy" if table.figure == "steps" else "steps" if table.target is not None else None
    return [*of_paper, *table.shown, *([own] if own is not None else [])]


def _values(figure: str, entries: Sequence[Entry]) -> list[float]:
    """Return a figure of the runs that have it; steps: of those that reached the target."""
    having = [each for each in entries if figure in each.figures]
    if figure == "steps":
        having = [each for each in having if each.figures[figure] <= each.facts["steps"]]
    return [float(each.figures[figure]) for each in having]


def _also(name: str, row: RecipeRow, entries: Sequence[Entry]) -> Row:
    """Return a further figure of a row: the paper's, and the mean and deviation of what was measured."""
    values = _values(name, entries)
    mean, deviation = mean_and_deviation(values) if values else (None, None)
    return {
        "figure": name,
        "paper": row.also.get(name),
        "mean": mean,
        "deviation": deviation,
        "seeds": sum(name in each.figures for each in entries),
        "reached": len(values),
    }


def _against(figure: str, base: Sequence[float], values: Sequence[float]) -> Row:
    """Compare a row with the first of its column.

    The difference of the means, half the width of its 95 % confidence interval, Welch's p-value and a word for it.
    """
    better = FIGURES[figure][1]
    if not base or not values or better is None:
        return {"difference": None, "interval": None, "p": None, "verdict": ""}
    difference = mean_and_deviation(values)[0] - mean_and_deviation(base)[0]
    p = welch(base, values)
    word = "" if p is None else "undecided" if p >= SIGNIFICANT else "better" if (difference > 0) == better else "worse"
    return {"difference": difference, "interval": confidence(base, values), "p": p, "verdict": word}


def _summary(table: Table, counts: dict[str, int]) -> str:
    """Say in one sentence how the order of the rows compares with the paper's."""
    pairs = sum(counts.values())
    if not pairs or FIGURES[table.figure][1] is None:
        return ""
    tested = pairs - counts["untested"]
    words = f"Pairs of rows that the paper orders: {pairs}"
    if not tested:
        return f"{words}; none was tested: one of the rows has a single seed."
    return (
        f"{words}; tested over seeds: {tested}; in the same order here: {counts['same']}, in the opposite one: "
        f"{counts['opposite']}, undecided: {counts['undecided']} (Welch's test, p < {SIGNIFICANT})."
    )


def rounded(value: float, figure: str) -> str:
    """Format a figure for a table: counts whole, percentages with two decimals, others with five digits."""
    if figure in COUNTS:
        return f"{value:,.0f}"
    return f"{value:.2f}" if FIGURES.get(figure, ("%",))[0] == "%" else f"{value:.5g}"


def _short(value: float, figure: str, sign: str = "") -> str:
    """Format a deviation or difference: counts and large ones whole, others with two digits."""
    return f"{value:{sign},.0f}" if figure in COUNTS or abs(value) >= 99.5 else f"{value:{sign}.2g}"


def cells(found: Row, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Format rows of what :func:`compare` returns: the header, and the cells of each."""
    also = [each["also"].values() for each in rows]
    names = [of[0]["figure"] for of in zip(*also, strict=True) if any(x["seeds"] or x["paper"] is not None for x in of)]
    table = tables.load(found["table"])
    header = ["row", "paper", "measured", "seeds", "against the first row", *(described(table, name) for name in names)]
    lines = []
    for row in rows:
        first = [row["row"], printed(row), measured(row), str(row["seeds"] or "-"), against(row)]
        lines.append([*first, *(measured_also(row["also"][name]) for name in names)])
    return header, lines


def against(row: Row) -> str:
    """Format how a row compares with the first of its column; "-" if it was not compared."""
    if row["difference"] is None:
        return "-"
    percent = FIGURES[row["figure"]][0] == "%"
    shown = f"{row['difference']:+.2f}" if percent else _short(row["difference"], row["figure"], "+")
    return f"{shown}, {decision(row)}" if row["verdict"] else shown


def decision(row: Row) -> str:
    """Format what the test over seeds says of a row."""
    if row["p"] is None:
        return "one seed cannot decide"
    chance = f"p = {row['p']:.2g}" if row["p"] >= 1e-4 else "p < 0.0001"
    return f"{row['verdict']} ({chance})"


def measured(row: Row) -> str:
    """Format a row's mean and deviation; "-" if it has not been run."""
    if not row["seeds"]:
        return "-" if row.get("runs", True) else "only --full"
    if row.get("failed"):
        return f"broke off ({row['failed']} of {row['seeds']})"
    if row["reached"] < row["seeds"]:
        return f"not reached ({row['seeds'] - row['reached']} of {row['seeds']})"
    deviation = row["deviation"]
    if deviation is None:
        return rounded(row["mean"], row["figure"])
    return f"{rounded(row['mean'], row['figure'])} ± {_short(deviation, row['figure'])}"


def measured_also(figure: Row) -> str:
    """Format a further figure with the paper's in parentheses, if it has one."""
    if 0 < figure["reached"] < figure["seeds"]:
        return f"{rounded(figure['mean'], figure['figure'])} ({figure['reached']} of {figure['seeds']} reached it)"
    return measured(figure) + ("" if figure["paper"] is None else f" (paper {printed(figure)})")


def printed(row: Row) -> str:
    """Format the paper's figure; "-" if it gives none."""
    return "-" if row["paper"] is None else rounded(row["paper"], row["figure"])
