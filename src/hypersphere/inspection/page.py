"""The HTML page of an inspection or a comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .._internal.text import escaped
from ..report.curves import LOG_AXIS
from ..report.page import Cell, Page, colour
from .comparing import Comparison
from .diagnosis.result import format_excess, label
from .result import Inspection
from .rows import Layer

MOST_BARS = 400


def make_page(result: Inspection | Comparison) -> Page:
    """Build the page: verdict, charts, every figure in sortable tables."""
    return _inspection_page(result) if isinstance(result, Inspection) else _comparison_page(result)


def _inspection_page(result: Inspection) -> Page:
    page = Page(f"Inspection of {result.path}", f"{result.format}, {result.bytes / 1e6:.1f} MB, {len(result)} layers")
    page.section("Verdict")
    for line in result.verdict:
        page.text(line.replace("`", ""))
    rows = [*result, *result.others]
    page.table(["layer", "grade", "what was found"], [[_name(x), x.verdict.grade, str(x.verdict)] for x in rows])
    page.section("Layer by layer")
    shown = rows[:MOST_BARS]
    names = [_name(each) for each in shown]
    angles = [None if x.separation is None else math.degrees(x.separation) for x in shown]
    energies = [x.energy if math.isfinite(x.energy) and x.separation is not None else None for x in shown]
    page.chart(
        _bars(names, angles, "closest pair of neurons (degrees)"),
        caption="The angle between the two closest neurons of each layer; 0 is a duplicate.",
        height=_height(len(shown)),
    )
    page.chart(
        _bars(names, energies, "energy", dots=True),
        caption="The mean energy of pairs of neurons; random neurons of many dimensions have 0.5.",
        height=_height(len(shown)),
    )
    if len(rows) > MOST_BARS:
        page.text(f"The charts show the first {MOST_BARS} layers.")
    page.section("Spread of the neurons")
    header = [
        "layer",
        "kind",
        "neurons",
        "groups",
        "dimension",
        "energy",
        "half space",
        "excess",
        "random",
        "compared",
    ]
    page.table(header, [_energy_row(each) for each in rows], caption="Energies")
    header = ["layer", "least angle °", "pair", "mean angle °", "near-duplicates", "opposite pairs", "dead"]
    page.table(header, [_angle_row(each) for each in rows], caption="Angles")
    page.section("Rank and lengths")
    header = [
        "layer",
        "effective rank",
        "largest singular value",
        "‖WWᵀ−I‖²",
        "shortest",
        "longest",
        "spread of lengths",
    ]
    page.table(header, [_length_row(each) for each in rows])
    _add_named(page, rows)
    for note in result.notes():
        page.text(note)
    return page


def _comparison_page(result: Comparison) -> Page:
    page = Page("What changed", f"{result.before} → {result.after}")
    page.section("Verdict")
    for line in result.verdict:
        page.text(line.replace("`", ""))
    page.section("Layer by layer")
    shown = result[:MOST_BARS]
    names = [escaped(each.name) or "(root)" for each in shown]
    page.chart(_bars(names, [100 * x.changed for x in shown], "change (% of the length)"), height=_height(len(shown)))
    shares = [None if x.rotation is None else 100 * x.rotation for x in shown]
    page.chart(_bars(names, shares, "of which a rotation (%)"), height=_height(len(shown)))
    header = [
        "layer",
        "neurons",
        "dimension",
        "changed %",
        "rotation %",
        "by chance %",
        "mean turn °",
        "largest turn °",
    ]
    header += ["neuron", "longer", "energy before", "after"]
    rows = [
        [
            escaped(x.name) or "(root)",
            x.neurons,
            x.dimension,
            100 * x.changed,
            None if x.rotation is None else 100 * x.rotation,
            100 * x.rotation_by_chance,
            _degrees(x.mean_turn),
            _degrees(x.largest_turn),
            x.most_turned,
            x.length_ratio,
            x.energy_before,
            x.energy_after,
        ]
        for x in result
    ]
    page.table(header, rows)
    if result.different:
        page.section("Not compared")
        page.table(["layer", "why"], [[escaped(name), why] for name, why in result.different.items()])
    for note in result.notes():
        page.text(note)
    return page


def _energy_row(x: Layer) -> list[Cell]:
    return [
        *(_name(x), x.kind, x.neurons, x.groups, x.dimension, x.energy),
        *(
            x.half_energy,
            _excess(x.excess),
            _excess(x.random_excess),
            f"sample of {x.sampled}" if x.sampled else "all",
        ),
    ]


def _angle_row(x: Layer) -> list[Cell]:
    pair = f"{x.closest[0]}, {x.closest[1]}" if x.closest else ""
    return [
        *(_name(x), _degrees(x.separation), pair, _degrees(x.mean_angle), len(x.redundant), x.opposite_pairs),
        len(x.dead),
    ]


def _length_row(x: Layer) -> list[Cell]:
    return [
        *(_name(x), x.effective_rank, x.largest_singular, x.orthonormality, x.shortest, x.longest, x.norm_spread),
    ]


def _add_named(page: Page, layers: Sequence[Layer]) -> None:
    """Add which neurons are dead, redundant or opposite."""
    rows: list[list[Cell]] = []
    for x in layers:
        found = {
            "NaN or infinity": ", ".join(map(str, x.broken[:200])),
            "zero": ", ".join(map(str, x.dead[:200])),
            "near-duplicates": "; ".join(f"{i}, {j}" for i, j in x.duplicates[:200]),
            "opposite": "; ".join(f"{i}, {j}" for i, j in x.opposites[:200]),
        }
        rows += [[_name(x), what, listed] for what, listed in found.items() if listed]
    if rows:
        page.section("Wasted neurons")
        page.table(["layer", "what", "neurons (the first 200)"], rows)


def _bars(names: Sequence[str], values: Sequence[float | None], title: str, dots: bool = False) -> dict[str, Any]:
    """Draw a bar from 0 for each layer, or a dot on a logarithmic axis, which has no 0 to begin at."""
    numbers = [str(i) for i in range(len(names))]  # two layers may have the same short name
    bars = {
        **({"type": "scatter", "mode": "markers"} if dots else {"type": "bar", "orientation": "h"}),
        "y": numbers,
        "x": list(values),
        "hovertext": list(names),
        "hoverinfo": "x+text",
        "marker": {"color": colour(0), **({"size": 9} if dots else {})},
    }
    layout = {
        "xaxis": {"title": {"text": title}, **(LOG_AXIS if dots else {"rangemode": "tozero"})},
        "hovermode": "closest",
        "yaxis": {
            "autorange": "reversed",
            "type": "category",
            "tickvals": numbers,
            "ticktext": [name if len(name) <= 30 else f"…{name[-29:]}" for name in names],
            "automargin": True,
        },
    }
    return {"data": [bars], "layout": layout}


def _height(bars: int) -> int:
    return 120 + 18 * max(bars, 4)


def _name(layer: Layer) -> str:
    return label(layer) + (" †" if layer.passed_over else "")


def _degrees(angle: float | None) -> float | None:
    return None if angle is None else math.degrees(angle)


def _excess(share: float | None) -> Cell:
    return None if share is None else (format_excess(share, 2.0), share)
