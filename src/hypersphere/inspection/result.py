"""The result of :func:`inspect`: a row for each layer, a verdict, JSON and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

from .._internal.text import escaped, printable
from .diagnosis.result import assumptions, format_angle, format_excess, format_number, shorten
from .measuring import DUPLICATE_ANGLE
from .rows import Layer
from .verdict import summarize

LONGEST_NAME = 40
NOTHING = "–"
SPREAD = (
    *("layer", "neurons", "dim", "energy", "half", "excess", "random", "least angle", "pair", "mean angle"),
    *("dupl.", "opp.", "dead"),
)
REST = ("layer", "kind", "verdict", "rank", "‖WWᵀ−I‖²", "σ max", "lengths")


@dataclass(frozen=True)
class Table:
    """Cells as text; the first `left` columns are aligned left."""

    header: Sequence[str]
    rows: list[list[str]]
    left: int = 1

    def __str__(self) -> str:
        lines = [list(self.header), *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i < self.left else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )


@dataclass(frozen=True, repr=False)
class Inspection(Sequence[Layer]):
    """A sequence of layers; str() is a table, :meth:`to_dict` is for JSON."""

    path: str
    format: str
    bytes: int
    layers: tuple[Layer, ...]
    skipped: dict[str, str]
    """Tensors of two or more dimensions that are not measured, and why."""
    others: tuple[Layer, ...] = ()
    """Matrices that :func:`diagnose` passes over: embeddings, recurrent weights, those under unknown names."""

    def __len__(self) -> int:
        return len(self.layers)

    @overload
    def __getitem__(self, index: int) -> Layer: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Layer, ...]: ...
    def __getitem__(self, index: int | slice) -> Layer | tuple[Layer, ...]:
        return self.layers[index]

    @property
    def verdict(self) -> list[str]:
        """How the file is, then what to do: a line each."""
        return summarize(self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON; angles are in radians."""
        return {
            "path": self.path,
            "format": self.format,
            "bytes": self.bytes,
            "angles": "radians",
            "duplicate_angle": DUPLICATE_ANGLE,
            "verdict": self.verdict,
            "layers": [layer.to_dict() for layer in self.layers],
            "others": [layer.to_dict() for layer in self.others],
            "skipped": self.skipped,
        }

    @property
    def title(self) -> str:
        return f"{self.path} ({self.format}, {self.bytes / 1e6:.1f} MB)"

    def tables(self) -> tuple[Table, Table]:
        """Return how the neurons are spread, and the verdict with the other figures."""
        rows = [*self.layers, *self.others]
        marks = [(" ?" if row.assumed else "") + (" †" if row.passed_over else "") for row in rows]
        names = [f"{name}{mark}" for name, mark in zip(short_names([row.name for row in rows]), marks, strict=True)]
        named = list(zip(names, rows, strict=True))
        return (
            Table(SPREAD, [[name, *_spread_cells(layer)] for name, layer in named]),
            Table(REST, [[name, *_rest_cells(layer)] for name, layer in named], left=3),
        )

    def notes(self) -> list[str]:
        """Return what the columns mean and what was left out."""
        near = format_angle(DUPLICATE_ANGLE)
        notes = [
            "energy: mean distance^-2 over pairs of neurons; half: with their antipodes; excess: above the lower bound",
            "random: the excess of random neurons; rank: effective rank; σ max: largest singular value",
            f"dupl.: neurons within {near} of an earlier one; opp.: pairs within {near} of opposite",
        ]
        if grouped := next((layer for layer in self.layers if layer.groups > 1), None):
            groups, n = grouped.groups, grouped.neurons
            notes.append(f"{groups}·{n}: {groups} groups of {n} neurons; pairs are within a group, energies are means")
        if sampled := next((layer.sampled for layer in self.layers if layer.sampled), None):
            notes.append(f"~: of {sampled} neurons, drawn with a fixed seed; dead neurons and lengths are of all")
        if assumed := assumptions(self.layers):
            notes.append(assumed)
        if self.others:
            reasons = ", ".join(sorted({other.passed_over for other in self.others}))
            notes.append(f"†: passed over by select and diagnose: {reasons}")
        if self.skipped:
            shown = ", ".join(short_names(list(self.skipped)[:4]))
            notes.append(f"left out: {shown}{f' and {len(self.skipped) - 4} more' if len(self.skipped) > 4 else ''}")
        return notes

    def __str__(self) -> str:
        spread, rest = self.tables()
        return printable("\n".join([self.title, str(spread), "", str(rest), "", *self.verdict, "", *self.notes()]))

    __repr__ = __str__


def _spread_cells(layer: Layer) -> list[str]:
    about = "~" if layer.sampled else ""
    return [
        f"{layer.groups}·{layer.neurons}" if layer.groups > 1 else f"{layer.neurons}",
        f"{layer.dimension}",
        about + format_number(layer.energy),
        about + format_number(layer.half_energy),
        format_excess(layer.excess, 2.0),
        format_excess(layer.random_excess, 2.0),
        about + format_angle(layer.separation),
        f"{layer.closest[0]}, {layer.closest[1]}" if layer.closest else NOTHING,
        about + format_angle(layer.mean_angle),
        f"{about}{len(layer.redundant)}",
        f"{about}{layer.opposite_pairs}",
        f"{len(layer.dead)}",
    ]


def _rest_cells(layer: Layer) -> list[str]:
    about = "~" if layer.sampled else ""
    return [
        layer.kind,
        f"{layer.verdict.grade}: {layer.verdict}",
        f"{about}{layer.effective_rank:.1f}",
        about + short_number(layer.orthonormality),
        about + short_number(layer.largest_singular),
        f"{short_number(layer.shortest)} … {short_number(layer.longest)}" if layer.shortest is not None else NOTHING,
    ]


def short_number(value: float | None) -> str:
    return NOTHING if value is None else "∞" if math.isinf(value) else f"{value:.3g}"


def short_names(names: Sequence[str]) -> list[str]:
    """Escape and shorten names; those that become equal get a number."""
    found: list[str] = []
    seen: dict[str, int] = {}
    for name in names:
        short = shorten(escaped(name[:1000] if len(name) <= 1000 else name[:500] + name[-500:]), LONGEST_NAME)
        short = short or "(root)"
        seen[short] = seen.get(short, 0) + 1
        found.append(short if seen[short] == 1 else f"{short} ({seen[short]})")
    return found
