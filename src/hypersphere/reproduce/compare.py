"""Compare measured figures with the paper's: means over seeds, and whether the order of the rows agrees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..recipes import papers
from ..recipes.table import FIGURES, Table
from ..recipes.table import Row as RecipeRow
from . import results
from .results import FULL, SMALL
from .runner import can_run, done, estimate, form_of
from .statistics import SIGNIFICANT, agreement, mean_and_deviation, welch

Row = dict[str, Any]
CLIPPED = (
    "Gradient norms are clipped at 1, which the paper does not say; its released code bounds gradients by the loss "
    "log(softmax + 1e-4)."
)
LABELS = {
    "few_shot": "accuracy of 5-way 5-shot episodes",
    "class0_accuracy": "accuracy of class 0",
    "class0_error": "error of class 0",
    "score": "score, more is better",
}
COUNTS = ("steps", "parameters")  # figures that are whole numbers


def overview(name: str, folder: Path, full: bool) -> Row:
    """Return how many runs of a table are done, and the core-minutes of all and of the others; None where unknown."""
    table, form = papers.load(name), form_of(full)
    rows = [row for row in table.rows if can_run(row, form)]
    finished = done(table, results.read(folder, name), form)
    left = {row.name: max(0, row.seeds - len(finished[row.name])) for row in rows}
    known = not full or any(finished.values())
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
    table, form = papers.load(name), form_of(full)
    chosen = [table.row(each) for each in only]
    kept = [
        row for row in table.rows if not only or row in chosen or any(row is table.baseline(each) for each in chosen)
    ]
    finished = done(table, results.read(folder, name), form)
    values = {row.name: [float(each.figures[table.figure]) for each in finished[row.name]] for row in table.rows}
    reached = {row.name: _reached(table, finished[row.name]) for row in table.rows}
    rows = []
    for row in kept:
        found, base, entries = values[row.name], table.baseline(row), finished[row.name]
        mean, deviation = mean_and_deviation(found) if found else (None, None)
        decidable = reached[row.name] == len(found) and reached[base.name] == len(values[base.name])
        rows.append(
            {
                "row": row.name,
                "runs": can_run(row, form),
                "figure": table.figure,
                "paper": row.paper,
                "mean": mean,
                "deviation": deviation,
                "values": found,
                "seeds": len(found),
                "reached": reached[row.name],
                "seconds": sum(each.seconds or 0 for each in entries),
                "verdict": _verdict(table, values[base.name], found) if row is not base and decidable else "",
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
        "reduced": _with_clipping(table, SMALL, table.reduced),
        "differs": _with_clipping(table, FULL, table.differs),
        "rows": rows,
        "order": counts,
        "summary": _summary(table, counts),
    }


def _with_clipping(table: Table, form: str, words: str) -> str:
    """Add to how a form differs from the paper that gradients are clipped, if those of a column's first row are."""
    firsts = [table.baseline(row) for row in table.rows]
    configs = [row.full if form == FULL else row.small for row in firsts]
    clipped = any(config is not None and isinstance(config.clip, float) for config in configs)
    return f"{words} {CLIPPED}".lstrip() if clipped else words


def described(table: Table, name: str) -> str:
    """Name a figure with its unit, such as "error (%)"."""
    if name == "steps" and table.target is not None:
        return f"steps to {table.target:g} % validation accuracy"
    unit = FIGURES.get(name, ("%", None))[0]
    return LABELS.get(name, name.replace("_", " ")) + (f" ({unit})" if unit else "")


def further_figures(table: Table) -> list[str]:
    """Return the figures beside the table's own that its results show: those the paper prints too, steps, accuracy."""
    of_paper = dict.fromkeys(name for row in table.rows for name in row.also)
    own = "accuracy" if table.figure == "steps" else "steps" if table.target is not None else None
    return [*of_paper, *([own] if own is not None else [])]


def _reached(table: Table, entries: list[results.Entry]) -> int:
    """Count the runs that reached the table's target; all, unless its figure is steps."""
    if table.figure != "steps":
        return len(entries)
    return sum(each.figures["steps"] <= each.facts["steps"] for each in entries)


def _also(name: str, row: RecipeRow, entries: list[results.Entry]) -> Row:
    """Return a further figure of a row: the paper's, and the mean and deviation of what was measured."""
    entries = [each for each in entries if name in each.figures]
    reached = entries
    if name == "steps":  # the mean is that of the runs that reached the target
        reached = [each for each in entries if each.figures[name] <= each.facts["steps"]]
    found = [float(each.figures[name]) for each in reached]
    mean, deviation = mean_and_deviation(found) if found else (None, None)
    return {
        "figure": name,
        "paper": row.also.get(name),
        "mean": mean,
        "deviation": deviation,
        "seeds": len(entries),
        "reached": len(reached),
    }


def _verdict(table: Table, base: list[float], found: list[float]) -> str:
    """Say in a word or two how a row compares with the first."""
    better = FIGURES[table.figure][1]
    if not base or not found or better is None:
        return ""
    difference = mean_and_deviation(found)[0] - mean_and_deviation(base)[0]
    shown = f"{difference:+.2f}" if FIGURES[table.figure][0] == "%" else _short(difference, table.figure, "+")
    p = welch(base, found)
    if p is None:
        return shown
    word = "undecided" if p >= SIGNIFICANT else "better" if (difference > 0) == better else "worse"
    chance = f"p = {p:.2g}" if p >= 1e-4 else "p < 0.0001"
    return f"{shown}, {word} ({chance})"


def _summary(table: Table, counts: dict[str, int]) -> str:
    """Say in one sentence how the order of the rows compares with the paper's."""
    pairs = sum(counts.values())
    if not pairs or FIGURES[table.figure][1] is None:
        return ""
    return (
        f"Pairs of rows that the paper orders: {pairs}; in the same order here: {counts['same']}, in the opposite "
        f"one: {counts['opposite']}, undecided: {counts['undecided']} (Welch's test over seeds, p < {SIGNIFICANT})."
    )


def rounded(value: float, figure: str) -> str:
    """Format a figure for a table: counts whole, percentages with two decimals, others with five digits."""
    if figure in COUNTS:
        return f"{value:,.0f}"
    return f"{value:.2f}" if FIGURES.get(figure, ("%",))[0] == "%" else f"{value:.5g}"


def _short(value: float, figure: str, sign: str = "") -> str:
    """Format a deviation or difference: counts and large ones whole, others with two digits."""
    return f"{value:{sign},.0f}" if figure in COUNTS or abs(value) >= 99.5 else f"{value:{sign}.2g}"


def measured(row: Row) -> str:
    """Format a row's mean and deviation; "-" if it has not been run."""
    if not row["seeds"]:
        return "-" if row.get("runs", True) else "only --full"
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
