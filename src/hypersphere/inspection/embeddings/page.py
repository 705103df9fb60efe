"""The HTML page about embeddings: verdicts, spectrum, lengths, counts of neighbours, recall, and a view in space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...report.chart import Chart, Scene, Series
from ...report.linechart import line_chart
from ...report.networks import project
from ...report.page import Page
from ...report.scene import draw_scene
from .answers import EmbeddingInspection

_MOST_LISTED, _MOST_LABELS, _POINTS = 200, 9, 400


def make_page(result: EmbeddingInspection) -> Page:
    """Build the page."""
    page = Page("Inspection of embeddings", result.title)
    page.section("Answers")
    for table in result.tables(_MOST_LISTED):
        page.table(table.header, table.rows)
    for line in result.legend():
        page.text(line)
    if "counts" not in result.pictures:
        return page
    page.section("Pictures")
    for chart, caption in _charts(result):
        page.chart(chart, caption=caption)
    if groups := result["duplicates"].details["groups"][:_MOST_LISTED]:
        page.section("Groups of duplicates")
        page.table(["rows", "group"], [[len(group), " ".join(map(str, group[:_MOST_LISTED]))] for group in groups])
    return page


def _charts(result: EmbeddingInspection) -> list[tuple[Chart, str]]:
    drawn = result.pictures
    heights, edges = np.histogram(drawn["lengths"], 40)
    spectra = {"embeddings": _shares(drawn["variances"]), "uniform": _shares(drawn["uniform_variances"])}
    counts = {"embeddings": _reached(drawn["counts"]), "uniform": _reached(drawn["uniform_counts"])}
    cuts, bits = (_recalls(result, question) for question in ("may I cut", "may I quantize"))
    size: dict[str, Any] = {"width": 500, "height": 320}
    of_recall = {"ylabel": "recall@10", "ylim": (0, 1), **size}
    spectra = {name: line for name, line in spectra.items() if line[0]}
    return [
        (
            line_chart(spectra, xlabel="component", ylabel="share of variance", log="y" if spectra else "", **size),
            "The spectrum of the centred directions.",
        ),
        (
            line_chart({"rows": ((edges[:-1] + edges[1:]) / 2, heights)}, xlabel="length", ylabel="rows", **size),
            "The lengths of the rows.",
        ),
        (
            line_chart(counts, xlabel="times retrieved", ylabel="share of rows", log="y", **size),
            "The share of rows that are at least so often among the ten nearest of a query.",
        ),
        (line_chart(cuts, xlabel="dimensions", **of_recall), "Recall of fewer dimensions."),
        (line_chart(bits, xlabel="bits", **of_recall), "Recall of fewer bits a dimension."),
        (_space(drawn["drawn"], drawn["labels"]), "The three leading directions of a sample."),
    ]


def _shares(variances: torch.Tensor) -> tuple[list[float], list[float]]:
    """Return the number and the share of every component that has one."""
    values = (variances[variances > 0] / variances.sum()).tolist()
    return [float(i) for i in range(1, len(values) + 1)], values


def _reached(counts: torch.Tensor) -> tuple[list[float], list[float]]:
    """Return k and the share of rows with a count of at least k."""
    places = sorted({*torch.linspace(0, int(counts.max()), _POINTS).long().tolist()})
    ordered = counts.sort().values
    below = torch.searchsorted(ordered, torch.tensor(places))
    return [float(k) for k in places], (1 - below / len(counts)).tolist()


def _recalls(result: EmbeddingInspection, question: str) -> dict[str, tuple[list[float], list[float]]]:
    """Return lines of recall over dimensions or bits."""
    details = result[question].details
    recall: Mapping[str, Mapping[Any, float]] = details["recall"]
    if "1 bit" in recall:  # bits → method → recall
        bits = {"1 bit": 1.0, "int4": 4.0, "int8": 8.0}
        return {how: ([*bits.values()], [recall[name][how] for name in bits]) for how in recall["1 bit"]}
    lines = {name: ([float(k) for k in of], [*of.values()]) for name, of in recall.items()}
    even = details["uniform_recall"]
    return lines | {"uniform": ([float(k) for k in even], [*even.values()])}


def _space(drawn: tuple[npt.NDArray[np.int64], torch.Tensor], labels: npt.NDArray[np.int64] | None) -> Chart:
    rows, unit = drawn
    points, share = project(unit)
    groups = {"rows": np.ones(len(rows), bool)}
    if labels is not None:
        values, sizes = np.unique(labels[rows], return_counts=True)
        shown = values[np.argsort(-sizes, kind="stable")[:_MOST_LABELS]]
        groups = {f"label {label}": labels[rows] == label for label in shown}
        groups["other labels"] = ~np.isin(labels[rows], shown)
    series = [
        Series(name, points[here].tolist(), i, numbers=rows[here].tolist())
        for i, (name, is_in) in enumerate(groups.items())
        if len(here := np.flatnonzero(is_in))
    ]
    return draw_scene(Scene(series, has_sphere=True), f"{share:.0%} of the squared length")
