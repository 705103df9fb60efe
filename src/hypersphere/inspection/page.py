"""The HTML page of an inspection or a comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .._internal.text import escaped
from ..report.page import Cell, Page
from ..report.rows import bar_chart
from .comparing import Change, Comparison
from .embeddings import EmbeddingInspection
from .embeddings.page import make_page as make_embedding_page
from .layer_report import LayerReport
from .results import Inspection, format_excess, marks

MOST_BARS = 400
MOST_LISTED = 200


def make_page(result: Inspection | Comparison | EmbeddingInspection) -> Page:
    """Build the page: verdict, charts, every number in sortable tables."""
    if isinstance(result, EmbeddingInspection):
        return make_embedding_page(result)
    if isinstance(result, Inspection):
        lead = f"{result.format}, {result.bytes / 1e6:.1f} MB, {len(result)} layers"
        page = Page(f"Inspection of {result.path}", lead)
    else:
        page = Page("What changed", f"{result.before} → {result.after}")
    page.section("Verdict")
    for line in result.verdict:
        page.text(line.replace("`", ""))
    if isinstance(result, Inspection):
        _add_layers(page, [*result, *result.others])
    else:
        _add_changes(page, result)
    for line in result.legend():
        page.text(line)
    return page


def _add_layers(page: Page, layers: Sequence[LayerReport]) -> None:
    page.table(["layer", "grade", "what was found"], [[_name(x), x.verdict.grade, str(x.verdict)] for x in layers])
    page.section("Layer by layer")
    energies = [x.energy if math.isfinite(x.energy) and x.separation is not None else None for x in layers]
    names = [_name(x) for x in layers]
    caption = "The angle between the two closest neurons of each layer; 0 is a duplicate."
    _add_bars(page, names, [_degrees(x.separation) for x in layers], "closest pair of neurons (degrees)", caption)
    caption = "The mean energy of pairs of neurons; random neurons of many dimensions have 0.5."
    _add_bars(page, names, energies, "energy", caption)
    page.section("Spread of the neurons")
    header = ["layer", "kind", "neurons", "groups", "dimension", "energy", "half space", "excess", "random"]
    header += ["closest °", "pair", "mean angle °", "near-duplicates", "opposite pairs", "dead", "compared"]
    page.table(header, [_spread_row(x) for x in layers])
    page.section("Rank and lengths")
    header = ["layer", "effective rank", "largest singular value", "‖WWᵀ−I‖²"]
    header += ["shortest", "longest", "spread of lengths"]
    numbers = [(x.effective_rank, x.largest_singular, x.orthonormality, x.shortest, x.longest) for x in layers]
    page.table(header, [[_name(x), *row, x.norm_spread] for x, row in zip(layers, numbers, strict=True)])
    if wasted := [row for x in layers for row in _wasted_rows(x)]:
        page.section("Wasted neurons")
        page.table(["layer", "what", f"neurons (the first {MOST_LISTED})"], wasted)


def _spread_row(x: LayerReport) -> list[Cell]:
    excesses = [None if share is None else (format_excess(share, 2.0), share) for share in (x.excess, x.random_excess)]
    pair = f"{x.closest[0]}, {x.closest[1]}" if x.closest else ""
    return [
        *(_name(x), x.kind, x.neurons, x.groups, x.dimension, x.energy, x.half_energy, *excesses),
        *(_degrees(x.separation), pair, _degrees(x.mean_angle), len(x.redundant), x.opposite_pairs, len(x.dead)),
        f"sample of {x.sampled}" if x.sampled else "all",
    ]


def _wasted_rows(x: LayerReport) -> list[list[Cell]]:
    """Return which neurons are broken, dead, redundant or opposite."""
    listed = {
        "NaN or infinity": ", ".join(map(str, x.broken[:MOST_LISTED])),
        "zero": ", ".join(map(str, x.dead[:MOST_LISTED])),
        "near-duplicates": "; ".join(f"{i}, {j}" for i, j in x.duplicates[:MOST_LISTED]),
        "opposite": "; ".join(f"{i}, {j}" for i, j in x.opposites[:MOST_LISTED]),
    }
    return [[_name(x), what, neurons] for what, neurons in listed.items() if neurons]


def _add_changes(page: Page, result: Comparison) -> None:
    page.section("Layer by layer")
    names = [escaped(x.name) or "(root)" for x in result]
    _add_bars(page, names, [100 * x.changed for x in result], "change (% of the length)")
    _add_bars(page, names, [_percent(x.rotation) for x in result], "of which a rotation (%)")
    header = ["layer", "neurons", "dimension", "changed %", "rotation %", "by chance %", "mean turn °"]
    header += ["largest turn °", "neuron", "longer", "energy before", "after"]
    page.table(header, [[name, *_change_row(x)] for name, x in zip(names, result, strict=True)])
    if result.different:
        page.section("Not compared")
        page.table(["layer", "why"], [[escaped(name), why] for name, why in result.different.items()])


def _change_row(x: Change) -> list[Cell]:
    return [
        *(x.neurons, x.dimension, 100 * x.changed, _percent(x.rotation), _percent(x.rotation_by_chance)),
        *(_degrees(x.mean_turn), _degrees(x.largest_turn), x.most_turned, x.length_ratio),
        *(x.energy_before, x.energy_after),
    ]


def _add_bars(page: Page, names: Sequence[str], values: Sequence[float | None], title: str, caption: str = "") -> None:
    """Add a bar for each layer; of energies a dot on a logarithmic axis."""
    shown = {title: values[:MOST_BARS]}
    caption += f" The first {MOST_BARS} layers." if len(names) > MOST_BARS else ""
    page.chart(bar_chart(names[:MOST_BARS], shown, xlabel=title, log=title == "energy"), caption=caption)


def _name(layer: LayerReport) -> str:
    return (escaped(layer.name) or "(root)") + marks(layer)


def _degrees(angle: float | None) -> float | None:
    return None if angle is None else math.degrees(angle)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
