"""Compare measured figures with the paper's: means over seeds, and whether the order of the rows agrees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..recipes import papers
from ..recipes.table import FIGURES, Table
from . import results
from .runner import can_run, done, estimate, form_of
from .statistics import SIGNIFICANT, agreement, mean_and_deviation, welch

Row = dict[str, Any]


def overview(name: str, folder: Path, full: bool) -> Row:
    """Return how many runs of a table are done, and the minutes that the others take; None where nobody knows."""
    table, form = papers.load(name), form_of(full)
    rows = [row for row in table.rows if can_run(row, form)]
    finished = done(table, results.read(folder, name), form)
    left = {row.name: max(0, row.seeds - len(finished[row.name])) for row in rows}
    known = not full or any(finished.values())
    minutes = sum(left[row.name] * estimate(table, row, finished) for row in rows) if known else None
    runs = sum(row.seeds for row in rows)
    return {
        "table": name,
        "title": table.title,
        "runs": runs,
        "done": runs - sum(left.values()),
        "minutes": minutes,
        "rows": [row.name for row in table.rows],
    }


def compare(name: str, folder: Path, full: bool = False) -> Row:
    """Return a table with the paper's figures, the measured means and deviations, and what a test over seeds says."""
    table, form = papers.load(name), form_of(full)
    finished = done(table, results.read(folder, name), form)
    values = {row.name: [float(each.figures[table.figure]) for each in finished[row.name]] for row in table.rows}
    unit, _ = FIGURES[table.figure]
    rows = []
    for row in table.rows:
        found, base = values[row.name], table.baseline(row)
        mean, deviation = mean_and_deviation(found) if found else (None, None)
        entries = finished[row.name]
        rows.append(
            {
                "row": row.name,
                "paper": row.paper,
                "mean": mean,
                "deviation": deviation,
                "values": found,
                "seeds": len(found),
                "seconds": sum(each.seconds or 0 for each in entries),
                "verdict": _verdict(table, values[base.name], found) if row is not base else "",
                "note": row.note,
            }
        )
    columns = {row.column: [each for each in table.rows if each.column == row.column] for row in table.rows}
    found_in = [agreement([row.paper for row in c], [values[row.name] for row in c]) for c in columns.values()]
    counts = {key: sum(each[key] for each in found_in) for key in found_in[0]}
    return {
        "table": name,
        "title": table.title,
        "figure": table.figure,
        "unit": unit,
        "form": form,
        "reduced": table.reduced,
        "tried": table.tried,
        "rows": rows,
        "order": counts,
        "summary": _summary(table, counts),
    }


def _verdict(table: Table, base: list[float], found: list[float]) -> str:
    """Say in a word or two how a row compares with the first."""
    better = FIGURES[table.figure][1]
    if not base or not found or better is None:
        return ""
    difference = mean_and_deviation(found)[0] - mean_and_deviation(base)[0]
    p = welch(base, found)
    if p is None:
        return f"{difference:+.3g}"
    word = "no difference" if p >= SIGNIFICANT else "better" if (difference > 0) == better else "worse"
    chance = f"p = {p:.2g}" if p >= 1e-4 else "p < 0.0001"
    return f"{difference:+.3g}, {word} ({chance})"


def _summary(table: Table, counts: dict[str, int]) -> str:
    """Say in one sentence how the order of the rows compares with the paper's."""
    pairs = sum(counts.values())
    if not pairs or FIGURES[table.figure][1] is None:
        return ""
    return (
        f"Pairs of rows that the paper orders: {pairs}; in the same order here: {counts['same']}, in the opposite "
        f"one: {counts['opposite']}, undecided: {counts['undecided']} (Welch's test over seeds, p < {SIGNIFICANT})."
    )


def rounded(value: float) -> str:
    """Format a figure for a table: counts whole, others with two decimals or five digits."""
    if value == int(value) and abs(value) >= 1000:
        return f"{int(value):,}"
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.5g}"


def measured(row: Row) -> str:
    """Format a row's mean and deviation; "-" if it has not been run."""
    if row["mean"] is None:
        return "-"
    return rounded(row["mean"]) + ("" if row["deviation"] is None else f" ± {row['deviation']:.2g}")
