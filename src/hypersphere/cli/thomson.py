"""Spread N points on the sphere with the least energy, and compare with the known minimum."""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections.abc import Iterable
from typing import Any

from .._internal.tables import NOTHING, TextTable
from ._output import file_to_write, integer, print_table, real, user_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "n",
        metavar="N",
        nargs="+",
        type=_points,
        help="number of points; a range such as 2-32 or several numbers give one row each",
    )
    parser.add_argument("--dim", type=integer(2), default=3, help="dimension of the space (default: 3)")
    parser.add_argument(
        "--s",
        type=real("a number >= 0, or inf", lambda s: s >= 0),
        default=1.0,
        help="exponent of the energy, the sum of distance^-s over pairs; 0: sum of -log distance; inf: maximize the "
        "smallest distance (default: 1)",
    )
    parser.add_argument(
        "--starts",
        type=integer(1),
        help="number of random starts (default: 64, fewer for many points, twice as many for s above 160)",
    )
    parser.add_argument("--seed", type=integer(0, 2**63 - 1), default=0, help="random seed (default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON only, with angles in radians")
    parser.add_argument(
        "--out", metavar="FILE", type=file_to_write(), help="write the points as CSV, one per row; for a single N only"
    )


def run(options: argparse.Namespace) -> int:
    numbers = [n for part in options.n for n in part]
    if options.out and len(numbers) > 1:
        options.error(f"argument --out: needs a single N, got {len(numbers)}")
    from .. import hyperspherical_energy
    from .._internal.progress import track
    from .._internal.safe_files import write_text
    from ..geometry import known_minimum, minimize_energy, separation
    from ..geometry.minimize import check_problem

    dim, s = options.dim, options.s
    with user_errors(options):
        check_problem(max(numbers), dim, s)
    single = len(numbers) == 1
    todo: Iterable[int] = numbers if single else track(numbers, "thomson")
    rows: list[dict[str, Any]] = []
    for n in todo:
        start = time.perf_counter()
        points = minimize_energy(n, dim, s, starts=options.starts, seed=options.seed, progress=single)
        seconds = time.perf_counter() - start
        energy = None if s == math.inf else float(hyperspherical_energy(points, s, reduction="sum")) / 2
        angle = float(separation(points)) if n > 1 else None
        reached, known = angle if s == math.inf else energy, known_minimum(n, dim, s)
        difference = None if reached is None or known is None else reached - known
        rows.append(
            {
                "n": n,
                "dim": dim,
                "s": "inf" if s == math.inf else s,  # JSON has no infinity
                "energy": energy,
                "known": known,
                "difference": difference,
                "separation": angle,
                "angles": "radians",
                "seconds": seconds,
            }
        )
    if options.json:
        print(json.dumps(rows[0] if single else rows, indent=2, allow_nan=False))
    else:
        print_table(_table(rows, dim, s))
    if options.out:
        with user_errors(options):
            write_text(options.out, "".join(",".join(map(repr, point)) + "\n" for point in points.tolist()))
    return 0


def _points(text: str) -> range:
    """Parse 12 or 2-32."""
    match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last:
        raise argparse.ArgumentTypeError(f"must be a number >= 1, or a range upwards like 2-32, got {text!r}")
    return range(first, last + 1)


def _table(rows: list[dict[str, Any]], dim: int, s: float) -> TextTable:
    """Return the table that is printed, with angles in degrees."""
    keys = ("separation", "known", "difference") if s == math.inf else ("energy", "known", "difference", "separation")
    if s == math.inf:
        title = f"largest least angle between two points, {dim} dimensions"
        header = ["N", "separation (degrees)", "known (degrees)", "difference (degrees)", "seconds"]
    else:
        title = f"sum of {'-log distance' if s == 0 else f'distance^-{s:g}'} over unordered pairs, {dim} dimensions"
        header = ["N", "energy", "known minimum", "difference", "separation (degrees)", "seconds"]
    cells = [[_cell(row[key], key, s == math.inf) for key in keys] for row in rows]
    lines = [[str(row["n"]), *cell, f"{row['seconds']:.2f}"] for row, cell in zip(rows, cells, strict=True)]
    return TextTable(header, lines, left=0, title=title)


def _cell(value: float | None, key: str, are_angles: bool) -> str:
    """Format a value with nine decimals, a difference with two digits, an angle in degrees."""
    if value is None:
        return NOTHING
    if are_angles or key == "separation":
        value = math.degrees(value)
    if key == "difference":
        return f"{value:+.1e}" if value else "0"
    return f"{value:.9f}" if value == 0 or 1e-3 <= abs(value) < 1e9 else f"{value:.9e}"
