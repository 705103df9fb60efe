"""The result of :func:`diagnose`: one row per layer, as data and as a plain text table of 120 columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from textwrap import wrap
from typing import Any, overload

from ..._internal.text import escaped

WIDTH = 120
SHORTEST_NAME = 16
NOTHING = "–"


@dataclass(frozen=True)
class Row:
    """One layer. Angles are in radians; indices are output channels of the whole layer.

    With groups, energies, the mean angle and the effective rank are means over groups, the separation is the smallest,
    and pairs are within a group. Fields that need a pair are None if no group has two nonzero neurons.
    """

    name: str
    neurons: int
    """N, in each group."""
    dimension: int
    """d, the dimension of a neuron."""
    energy: float
    """The mean energy of pairs in full space; 0 without pairs."""
    half_energy: float
    """The mean energy in half space, with the antipode of every neuron."""
    excess: float | None
    """(energy − bound)/bound, with the lower bound for N neurons; for s = 0 energy − bound."""
    random_excess: float | None
    """The expected excess of random neurons, to compare with; None if infinite (d ≤ s + 1)."""
    separation: float | None
    """The smallest angle between two neurons."""
    closest: tuple[int, int] | None
    """The two neurons at that angle."""
    duplicates: tuple[tuple[int, int], ...]
    """Pairs nearer than `duplicate_angle`, the nearest first, at most LISTED."""
    duplicate_pairs: int
    """The number of such pairs."""
    redundant: tuple[int, ...]
    """Neurons that have a near-duplicate with a lower index."""
    dead: tuple[int, ...]
    """Neurons that are zero; all other fields ignore them."""
    mean_angle: float | None
    effective_rank: float
    """exp of the entropy of the singular values (divided by their sum) of the unit neurons (Roy and Vetterli, 2007)."""
    groups: int = 1
    is_output: bool = False
    opposites: tuple[tuple[int, int], ...] = ()
    """Pairs nearer than `duplicate_angle` to being opposite, the nearest first, at most LISTED."""
    opposite_pairs: int = 0
    """The number of such pairs."""
    assumed: str = field(default="", compare=False)
    """What names and shapes in a state_dict or a file do not tell; empty if they do, and for a model."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON: tuples as lists, and None for an infinite excess."""
        return {name: _to_json(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, repr=False)
class Diagnosis(Sequence[Row]):
    """A sequence of rows, one per layer; str() is a table, :meth:`to_dicts` is for JSON."""

    rows: tuple[Row, ...]
    s: float = 2.0
    angular: bool = False
    duplicate_angle: float = 0.1

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Diagnosis: ...
    def __getitem__(self, index: int | slice) -> Row | Diagnosis:
        return replace(self, rows=self.rows[index]) if isinstance(index, slice) else self.rows[index]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dict per row, ready for JSON."""
        return [row.to_dict() for row in self.rows]

    def __str__(self) -> str:
        return _format_table(self)

    __repr__ = __str__


def _format_table(diagnosis: Diagnosis) -> str:
    """Format the rows under a header of two lines, with a legend and a summary."""
    if not diagnosis.rows:
        return "(no layers)"
    s = diagnosis.s
    columns: list[tuple[str, str, Callable[[Row], str]]] = [
        ("", "neurons", lambda row: f"{row.groups}·{row.neurons}" if row.groups > 1 else f"{row.neurons}"),
        ("", "dim", lambda row: f"{row.dimension}"),
        ("", "energy", lambda row: format_number(row.energy)),
        ("half", "energy", lambda row: format_number(row.half_energy)),
        ("", "excess", lambda row: format_excess(row.excess, s)),
        ("random", "excess", lambda row: format_excess(row.random_excess, s)),
        ("least", "angle", lambda row: format_angle(row.separation)),
        ("closest", "pair", lambda row: ", ".join(map(str, row.closest)) if row.closest else NOTHING),
        ("mean", "angle", lambda row: format_angle(row.mean_angle)),
        ("eff.", "rank", lambda row: f"{row.effective_rank:.1f}"),
        ("near-", "dupl.", lambda row: f"{len(row.redundant)}"),
        ("", "dead", lambda row: f"{len(row.dead)}"),
    ]
    body = [[cell(row) for _, _, cell in columns] for row in diagnosis.rows]
    lines = [[top for top, _, _ in columns], [title for _, title, _ in columns], *body]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    names = ["", "layer", *(label(row) for row in diagnosis.rows)]
    room = min(max(map(len, names)), max(SHORTEST_NAME, WIDTH - sum(widths) - 2 * len(widths)))
    # names stay distinct, even if the table gets wider
    while len({shorten(name, room) for name in names}) < len(set(names)):
        room += 1
    text = [
        "  ".join([shorten(name, room).ljust(room), *(cell.rjust(k) for cell, k in zip(cells, widths, strict=True))])
        for name, cells in zip(names, lines, strict=True)
    ]
    text.insert(2, "-" * len(text[-1]))
    notes = [line for note in (_legend(diagnosis), _summary(diagnosis)) for line in wrap(note, WIDTH)]
    return "\n".join(line.rstrip() for line in [*text, "", *notes])


def label(row: Row) -> str:
    """Return the name as tables show it: with a mark for the output, and for what was assumed."""
    return (escaped(row.name) or "(root)") + (" *" if row.is_output else "") + (" ?" if row.assumed else "")


def assumptions(rows: Iterable[Row]) -> str:
    """Return what the mark ? means for these rows; empty if none has it."""
    assumed = sorted({row.assumed for row in rows if row.assumed})
    return f"?: names and shapes do not tell, assumed: {'; or '.join(assumed)}" if assumed else ""


def shorten(name: str, room: int) -> str:
    """Drop the middle of `name` if it is longer than `room`; the end tells most."""
    if len(name) <= room:
        return name
    begin = min(6, room // 4)
    return f"{name[:begin]}…{name[len(name) - (room - 1 - begin) :]}"


def format_number(value: float, digits: int = 4) -> str:
    if math.isinf(value):
        return "∞"
    if abs(value) < 1000:
        return f"{value:.{digits}f}"
    return f"{value:.0f}" if abs(value) < 1e6 else f"{value:.1e}"


MOST_EXCESS = 1000  # times the bound: above, two neurons are nearly the same, and the number depends on rounding


def format_excess(value: float | None, s: float) -> str:
    if value is None:
        return NOTHING
    if s <= 0:
        return format_number(value)
    return f"{format_number(100 * value, 1)} %" if value <= MOST_EXCESS or math.isinf(value) else f"> {MOST_EXCESS} ×"


def format_angle(radians: float | None) -> str:
    """Format in degrees, with at least two digits."""
    if radians is None:
        return NOTHING
    degrees = math.degrees(radians)
    return f"{degrees:.1f}°" if degrees >= 0.95 or degrees == 0 else f"{degrees:.2g}°"


def _legend(diagnosis: Diagnosis) -> str:
    distance = "angle" if diagnosis.angular else "distance"
    law = f"{distance}^-{diagnosis.s:g}" if diagnosis.s > 0 else f"log 1/{distance}"
    parts = [
        f"energy: mean {law} over pairs of neurons",
        "half: with their antipodes",
        "excess: above the lower bound",
        "random: what random neurons have",
        f"near-dupl.: neurons within {format_angle(diagnosis.duplicate_angle)} of an earlier one",
    ]
    grouped = next((row for row in diagnosis if row.groups > 1), None)
    if grouped:
        parts.append(f"{grouped.groups}·{grouped.neurons}: {grouped.groups} groups of {grouped.neurons}")
    if any(row.is_output for row in diagnosis):
        parts.append("*: the output")
    if assumed := assumptions(diagnosis):
        parts.append(assumed)
    return "; ".join(parts)


def _summary(diagnosis: Diagnosis) -> str:
    compared = [
        (row.excess - row.random_excess, row)
        for row in diagnosis
        if row.excess is not None and row.random_excess is not None
    ]
    parts = []
    if compared:
        beyond, row = max(compared, key=lambda pair: pair[0])
        against = f"{format_excess(row.excess, diagnosis.s)}, random {format_excess(row.random_excess, diagnosis.s)}"
        crowded = f"most redundant: {shorten(escaped(row.name) or '(root)', 48)} (excess {against})"
        parts.append(crowded if beyond > 0 else "no layer is more crowded than random neurons")
    parts.append(_format_count("near-duplicates", [len(row.redundant) for row in diagnosis]))
    parts.append(_format_count("dead neurons", [len(row.dead) for row in diagnosis]))
    return "; ".join(parts)


def _format_count(what: str, numbers: Sequence[int]) -> str:
    layers = sum(k > 0 for k in numbers)
    return f"{what}: {sum(numbers)} in {layers} of {len(numbers)} layers" if layers else f"{what}: none"


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
