"""A diagnosis as a table for people: plain text, within 120 columns unless layers could not be told apart there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from textwrap import wrap

from .row import Row

WIDTH = 120
SHORTEST_NAME = 16
NOTHING = "–"


def table(rows: Sequence[Row], s: float, angular: bool, duplicate_angle: float) -> str:
    """Return the rows under a header of two lines, what the columns mean, and what stands out."""
    if not rows:
        return "(no layers)"
    columns: list[tuple[str, str, Callable[[Row], str]]] = [
        ("", "neurons", lambda row: f"{row.groups}·{row.neurons}" if row.groups > 1 else f"{row.neurons}"),
        ("", "dim", lambda row: f"{row.dimension}"),
        ("", "energy", lambda row: _number(row.energy)),
        ("half", "energy", lambda row: _number(row.half_energy)),
        ("", "excess", lambda row: _excess(row.excess, s)),
        ("random", "excess", lambda row: _excess(row.random_excess, s)),
        ("least", "angle", lambda row: _angle(row.separation)),
        ("closest", "pair", lambda row: ", ".join(map(str, row.closest)) if row.closest else NOTHING),
        ("mean", "angle", lambda row: _angle(row.mean_angle)),
        ("eff.", "rank", lambda row: f"{row.effective_rank:.1f}"),
        ("near-", "dupl.", lambda row: f"{len(row.redundant)}"),
        ("", "dead", lambda row: f"{len(row.dead)}"),
    ]
    body = [[cell(row) for _, _, cell in columns] for row in rows]
    lines = [[top for top, _, _ in columns], [title for _, title, _ in columns], *body]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    names = ["", "layer", *(_label(row) for row in rows)]
    room = min(max(map(len, names)), max(SHORTEST_NAME, WIDTH - sum(widths) - 2 * len(widths)))
    while len({_shortened(name, room) for name in names}) < len(set(names)):  # rather too wide than ambiguous
        room += 1
    text = [
        "  ".join([_shortened(name, room).ljust(room), *(cell.rjust(k) for cell, k in zip(cells, widths, strict=True))])
        for name, cells in zip(names, lines, strict=True)
    ]
    text.insert(2, "-" * len(text[-1]))
    notes = [
        line for note in (_legend(rows, s, angular, duplicate_angle), _summary(rows, s)) for line in wrap(note, WIDTH)
    ]
    return "\n".join(line.rstrip() for line in [*text, "", *notes])


def _label(row: Row) -> str:
    return (row.name or "(root)") + (" *" if row.is_output else "")


def _shortened(name: str, room: int) -> str:
    """`name` with its middle left out if it is longer than `room`; its end tells most."""
    if len(name) <= room:
        return name
    begin = min(6, room // 4)
    return f"{name[:begin]}…{name[len(name) - (room - 1 - begin) :]}"


def _number(value: float, digits: int = 4) -> str:
    if math.isinf(value):
        return "∞"
    if abs(value) < 1000:
        return f"{value:.{digits}f}"
    return f"{value:.0f}" if abs(value) < 1e6 else f"{value:.1e}"


def _excess(value: float | None, s: float) -> str:
    if value is None:
        return NOTHING
    return f"{_number(100 * value, 1)} %" if s > 0 else _number(value)


def _angle(radians: float | None) -> str:
    """In degrees, with two digits at least."""
    if radians is None:
        return NOTHING
    degrees = math.degrees(radians)
    return f"{degrees:.1f}°" if degrees >= 0.95 or degrees == 0 else f"{degrees:.2g}°"


def _legend(rows: Sequence[Row], s: float, angular: bool, duplicate_angle: float) -> str:
    distance = "angle" if angular else "distance"
    law = f"{distance}^-{s:g}" if s > 0 else f"log 1/{distance}"
    parts = [
        f"energy: mean {law} over pairs of neurons",
        "half: with their antipodes",
        "excess: over the least possible",
        "random: what random neurons have",
        f"near-dupl.: neurons within {_angle(duplicate_angle)} of an earlier one",
    ]
    grouped = next((row for row in rows if row.groups > 1), None)
    if grouped:
        parts.append(f"{grouped.groups}·{grouped.neurons}: {grouped.groups} groups of {grouped.neurons}")
    if any(row.is_output for row in rows):
        parts.append("*: the output")
    return "; ".join(parts)


def _summary(rows: Sequence[Row], s: float) -> str:
    compared = [
        (row.excess - row.random_excess, row)
        for row in rows
        if row.excess is not None and row.random_excess is not None
    ]
    parts = []
    if compared:
        beyond, row = max(compared, key=lambda pair: pair[0])
        against = f"{_excess(row.excess, s)}, random {_excess(row.random_excess, s)}"
        crowded = f"most redundant: {_shortened(row.name or '(root)', 48)} (excess {against})"
        parts.append(crowded if beyond > 0 else "no layer is more crowded than random neurons")
    parts.append(_count("near-duplicates", [len(row.redundant) for row in rows]))
    parts.append(_count("dead neurons", [len(row.dead) for row in rows]))
    return "; ".join(parts)


def _count(what: str, numbers: Sequence[int]) -> str:
    layers = sum(k > 0 for k in numbers)
    return f"{what}: {sum(numbers)} in {layers} of {len(numbers)} layers" if layers else f"{what}: none"
