"""Holes between neurons against their expected number and size (OPT, appendix L)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ... import geometry
from ...report import line_chart
from .. import theory
from .drawing import Drawing

NUMBERS = (25, 50, 100, 200, 500, 1000, 2000)  # N
DRAWS = 10
_SETS = (("random", 3), ("random", 4), ("Fibonacci", 3))  # points, dimension of the space
_LARGEST = {4: 500}  # N in four dimensions: a hull has seven facets a neuron there


def measure(kind: str, dim: int, n: int) -> dict[str, Any]:
    """Measure holes and covering radius of n points, random ones as means over draws, beside the expected values."""
    if kind == "random":
        sets = [geometry.random_points(n, dim, seed) for seed in range(DRAWS)]
    else:
        sets = [geometry.fibonacci_points(n, dim)]
    radii = [geometry.hole_radii(points) for points in sets]
    row: dict[str, Any] = {"points": kind, "sphere": f"S{'²³'[dim - 3]}", "N": n}
    for p, name in enumerate(("holes", "Σρ", "Σρ²")):
        sums = [float(radius.pow(p).sum()) for radius in radii]
        expected = theory.expected_hole_moment(n, dim, p)
        row |= {name: statistics.mean(sums), f"{name} expected": expected}
        row[f"{name} ±"] = (statistics.stdev(sums) if len(sums) > 1 else 0.0) / expected
    row["covering radius"] = statistics.mean(float(geometry.covering_radius(points)) for points in sets)
    row["at least"] = geometry.covering_lower_bound(n, dim)
    return row


def holes(_: Sequence[Path] = ()) -> Drawing:
    """Draw the moments of hole radii divided by their expected values for random neurons."""
    rows = [measure(kind, dim, n) for kind, dim in _SETS for n in NUMBERS if n <= _LARGEST.get(dim, NUMBERS[-1])]
    series: dict[str, tuple[list[float], list[float], list[float]]] = {}
    for row in rows:
        for name in ("holes", "Σρ", "Σρ²"):
            if (row["points"], name) == ("Fibonacci", "holes"):
                continue  # 2N − 4, as for all points on S² in general position
            x, y, spread = series.setdefault(f"{row['points']}, {row['sphere']}: {name}", ([], [], []))
            x.append(row["N"])
            y.append(row[name] / row[f"{name} expected"])
            spread.append(row[f"{name} ±"])
    chart = line_chart(
        series,
        title="Holes between N neurons: measured over expected (Lemma 5)",
        xlabel="N",
        ylabel="measured / expected",
        log="x",
        height=500,
    )
    shown = [{key: value for key, value in row.items() if not key.endswith("±")} for row in rows]
    notes = [
        f"ρ: radius of a hole. Random points: means over {DRAWS} draws, bands are their standard deviation. "
        "Covering radius in radians; no points can have less than the last column.",
        "The expected values are for random points and N → ∞; even points have smaller holes.",
    ]
    return Drawing(chart, shown, notes)
