"""What :func:`diagnose` and :func:`inspect` return: a row for each layer, as data, tables and words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar, overload

from .._internal.tables import NOTHING, TableResult, TextTable, degrees, number, percent
from .layer_report import LayerReport
from .verdict import shorten, summarize

R = TypeVar("R")
DUPLICATE_ANGLE = 0.1
"""Neurons nearer than this are near-duplicates, in radians."""
MOST_EXCESS = 1000  # times the bound: above, two neurons are nearly the same, and the number depends on rounding
SPREAD = (
    *("layer", "neurons", "dim", "energy", "half", "excess", "random", "closest", "pair", "mean", "rank"),
    *("dupl.", "opp.", "dead"),
)
WEIGHTS = ("layer", "kind", "verdict", "‖WWᵀ−I‖²", "σ max", "lengths")


@dataclass(frozen=True, repr=False)
class RowsResult(TableResult, Sequence[R]):
    """A result that is a sequence of its rows; a slice is such a result too."""

    rows: tuple[R, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> R: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> R | Self:
        return replace(self, rows=self.rows[index]) if isinstance(index, slice) else self.rows[index]

    @property
    def verdict(self) -> list[str]:
        """What the rows say in all, a line each."""
        raise NotImplementedError

    def legend(self) -> list[str]:
        """Return what the columns and marks mean, and what was left out."""
        raise NotImplementedError

    def notes(self) -> list[str]:
        """Return the verdict and the legend."""
        return [*self.verdict, "", *self.legend()]


@dataclass(frozen=True, repr=False)
class Diagnosis(RowsResult[LayerReport]):
    """A sequence of rows, one per layer; str() is a table, :meth:`to_dict` is for JSON."""

    s: float = 2.0
    angular: bool = False
    duplicate_angle: float = DUPLICATE_ANGLE

    @property
    def verdict(self) -> list[str]:
        """A line with the grades of all layers, then a line for each thing to do."""
        return summarize(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON; angles are in radians."""
        return {
            "s": self.s,
            "angular": self.angular,
            "angles": "radians",
            "duplicate_angle": self.duplicate_angle,
            "verdict": self.verdict,
            "layers": self.to_dicts(),
        }

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a dict of each row, for JSON."""
        return [row.to_dict() for row in self.rows]

    def tables(self) -> list[TextTable]:
        """Return how the neurons are spread."""
        return [TextTable(SPREAD, [[name, *self._spread_cells(row)] for name, row in self._named()])]

    def legend(self) -> list[str]:
        distance, near = "angle" if self.angular else "distance", degrees(self.duplicate_angle)
        law = f"{distance}^-{self.s:g}" if self.s > 0 else f"log 1/{distance}"
        rows = self._shown()
        lines = [
            f"energy: mean {law} over pairs of neurons; half: with their antipodes; excess: above the lower bound",
            "random: the excess of random neurons; closest, mean: smallest and mean angle; rank: effective rank",
            f"dupl.: neurons within {near} of an earlier one; opp.: pairs within {near} of opposite",
        ]
        if grouped := next((row for row in rows if row.groups > 1), None):
            groups, n = grouped.groups, grouped.neurons
            lines.append(f"{groups}·{n}: {groups} groups of {n} neurons; pairs are within a group, energies are means")
        if any(row.is_output for row in rows):
            lines.append("*: the output")
        if assumed := sorted({row.assumed for row in rows if row.assumed}):
            lines.append(f"?: names and shapes do not tell, assumed: {'; or '.join(assumed)}")
        return lines

    def _shown(self) -> tuple[LayerReport, ...]:
        return self.rows

    def _named(self) -> list[tuple[str, LayerReport]]:
        """Return the rows by short names with marks; names that become equal get a number."""
        rows = self._shown()
        names = short_names([row.name for row in rows])
        return [(name + marks(row), row) for name, row in zip(names, rows, strict=True)]

    def _spread_cells(self, row: LayerReport) -> list[str]:
        about = "~" if row.sampled else ""
        return [
            f"{row.groups}·{row.neurons}" if row.groups > 1 else f"{row.neurons}",
            f"{row.dimension}",
            about + number(row.energy),
            about + number(row.half_energy),
            format_excess(row.excess, self.s),
            format_excess(row.random_excess, self.s),
            about + degrees(row.separation),
            f"{row.closest[0]}, {row.closest[1]}" if row.closest else NOTHING,
            about + degrees(row.mean_angle),
            f"{about}{row.effective_rank:.1f}",
            f"{about}{len(row.redundant)}",
            f"{about}{row.opposite_pairs}",
            f"{len(row.dead)}",
        ]


@dataclass(frozen=True, repr=False)
class Inspection(Diagnosis):
    """The diagnosis of a file."""

    path: str = ""
    format: str = ""
    bytes: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    """Tensors of two or more dimensions that are not measured, and why."""
    others: tuple[LayerReport, ...] = ()
    """Matrices that :func:`diagnose` passes over: embeddings, recurrent weights, those under unknown names."""

    def to_dict(self) -> dict[str, Any]:
        return {
            **{"path": self.path, "format": self.format, "bytes": self.bytes},
            **super().to_dict(),
            "others": [row.to_dict() for row in self.others],
            "skipped": self.skipped,
        }

    def tables(self) -> list[TextTable]:
        """Return how the neurons are spread, and the verdict with lengths and singular values."""
        (spread,) = super().tables()
        title = f"{self.path} ({self.format}, {self.bytes / 1e6:.1f} MB)"
        weights = TextTable(WEIGHTS, [[name, *_weight_cells(row)] for name, row in self._named()], left=3)
        return [replace(spread, title=title), weights]

    def legend(self) -> list[str]:
        lines = super().legend()
        if sampled := next((row.sampled for row in self._shown() if row.sampled), None):
            lines.append(f"~: of {sampled} neurons, drawn with a fixed seed; dead neurons and lengths are of all")
        if self.others:
            reasons = ", ".join(sorted({other.passed_over for other in self.others}))
            lines.append(f"†: passed over by select and diagnose: {reasons}")
        if self.skipped:
            names = ", ".join(short_names(list(self.skipped)[:4]))
            lines.append(f"left out: {names}{f' and {len(self.skipped) - 4} more' if len(self.skipped) > 4 else ''}")
        return lines

    def _shown(self) -> tuple[LayerReport, ...]:
        return self.rows + self.others


def _weight_cells(row: LayerReport) -> list[str]:
    about = "~" if row.sampled else ""
    return [
        row.kind,
        f"{row.verdict.grade}: {row.verdict}",
        about + number(row.orthonormality, 3),
        about + number(row.largest_singular, 3),
        f"{number(row.shortest, 3)} … {number(row.longest, 3)}" if row.shortest is not None else NOTHING,
    ]


def marks(row: LayerReport) -> str:
    """Return the marks behind the name of a layer, which the legend explains."""
    return (" *" if row.is_output else "") + (" ?" if row.assumed else "") + (" †" if row.passed_over else "")


def format_excess(value: float | None, s: float) -> str:
    """Format an excess in percent of the bound; for s = 0 it is a difference."""
    if value is None or s <= 0:
        return number(value)
    if MOST_EXCESS < value < math.inf:
        return f"> {MOST_EXCESS} ×"
    return percent(value, 1) if value < math.inf else "∞"


def short_names(names: Sequence[str]) -> list[str]:
    """Shorten names; those that become equal get a number."""
    counts: Counter[str] = Counter()
    shortened = []
    for name in map(shorten, names):
        counts[name] += 1
        shortened.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return shortened
