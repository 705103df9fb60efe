"""What the networks of runs confuse: confusion matrix, accuracy of each class and the worst images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from .._internal.tables import percent
from .._internal.text import one_line
from ..train.storage import layout, predictions
from .chart import Chart
from .page import Cell, Page
from .png import png_uri
from .rows import bar_chart
from .run_files import RunFiles, RunGroup
from .svg import EDGE, GRID, LABEL, PALETTE, TICK, TITLE, document, escape, shorten, text_line, text_width

MOST_CLASSES = 40  # of a matrix; of more the most confused pairs are drawn
MOST_ROWS = 25  # of bars, of more classes or pairs
MOST_IMAGES = 10  # of each of several groups: a row
_LONGEST = 22  # letters of a class at an axis
_WIDTH = 500  # pixels of a chart

Tree = predictions.StoredPredictions


def read_predictions(groups: Sequence[RunGroup]) -> tuple[dict[str, Tree], list[str]]:
    """Return the predictions of each group, of its first run that has them, and notes on what is missing."""
    trees, notes, without = dict[str, Tree](), list[str](), list[RunFiles]()
    for group in groups:
        finished = [run for run in group.runs if run.result is not None and run.result.accuracy is not None]
        for run in finished:
            assert run.result is not None
            file = predictions.file_of(run.path, run.result.split)
            model = run.result.checksums.get(f"{layout.FINAL}/{layout.MODEL}")
            try:
                tree = predictions.read(file) if file.exists() else None
                if tree is not None and model is not None and tree.model != model:
                    raise ValueError(
                        f"{file} belongs to other weights; `hypersphere evaluate {run.path}` writes it anew"
                    )
            except (OSError, ValueError) as error:
                notes.append(f"{run.name}: {one_line(error)}.")
                continue
            if tree is not None:
                tree = replace(tree, classes=[_shown(name) for name in tree.classes])
                trees[group.name_of(run.name)] = tree
                break
        else:
            without += finished[:1]
    if without:
        names = ", ".join(run.name for run in without[:5]) + (", …" if len(without) > 5 else "")
        command = f"`hypersphere evaluate {without[0].path}`"
        notes.append(f"{names}: which classes are confused is not known; {command} writes it into the run folder.")
    return trees, notes


def add_mistakes(page: Page, predicted: Mapping[str, Tree], which: str) -> None:
    """Add the pictures; `which` says which groups they are of."""
    if not predicted:
        return
    page.section("Mistakes")
    if which:
        page.text(which)
    for classes, trees in _by_classes(predicted):
        rows = _worst_classes(classes, trees)
        some = f"the {len(rows)} worst of {len(classes)} classes" if len(rows) < len(classes) else "each class"
        shares = {name: _shares(tree) for name, tree in trees.items()}
        percents = {
            name: [None if (share := of_classes[row]) is None else 100 * share for row in rows]
            for name, of_classes in shares.items()
        }
        labels = [classes[row] for row in rows]
        page.chart(bar_chart(labels, percents, title=f"accuracy of {some}", xlabel="accuracy, %", xlim=(0.0, 102.0)))
        for name, tree in trees.items():
            page.chart(_matrix(tree, name) if len(classes) <= MOST_CLASSES else _pairs(tree, name))
    if any(len(tree.classes) <= MOST_CLASSES for tree in predicted.values()):
        page.text("In a matrix, numbers are samples; the colour is the share of the class that is predicted so.")
    if any(tree.worst for tree in predicted.values()):
        page.text("Images predicted wrong with the highest loss: label → prediction, and how sure the network was.")
    for name, tree in predicted.items():
        worst = tree.worst[: MOST_IMAGES if len(predicted) > 1 else None]
        if worst:
            page.images([(_picture(image), *_caption(tree, image)) for image in worst], caption=f"{name}, {tree.split}")


def add_tables(page: Page, predicted: Mapping[str, Tree]) -> None:
    """Add the accuracy of each class, and the most confused pairs."""
    for classes, trees in _by_classes(predicted):
        shares = {name: _shares(tree) for name, tree in trees.items()}
        first = next(iter(trees.values()))
        rows: list[list[Cell]] = [
            [name, first.samples[i], *(_cell(share[i]) for share in shares.values())] for i, name in enumerate(classes)
        ]
        page.table(["class", f"samples of {first.split}", *trees], rows, caption="Accuracy of each class.")
        pairs: list[list[Cell]] = [
            [name, classes[label], classes[guess], count, _cell(count / max(1, tree.samples[label]))]
            for name, tree in trees.items()
            for label, guess, count in tree.confused[:MOST_ROWS]
        ]
        if pairs:
            header = ["group", "label", "predicted as", "samples", "share of the class"]
            page.table(header, pairs, caption="The most confused classes.")


def _shown(name: str) -> str:
    """Return a class name; in text data it may be a line end."""
    return name if name.strip() else repr(name)


def _by_classes(predicted: Mapping[str, Tree]) -> list[tuple[list[str], dict[str, Tree]]]:
    """Put groups with the same classes, and as many samples of them, together."""
    together: dict[str, dict[str, Tree]] = {}
    for name, tree in predicted.items():
        together.setdefault(repr((tree.classes, tree.split, tree.samples)), {})[name] = tree
    return [(next(iter(trees.values())).classes, trees) for trees in together.values()]


def _shares(tree: Tree) -> list[float | None]:
    """Return the accuracy of each class, None without samples."""
    return [right / count if count else None for right, count in zip(tree.correct, tree.samples, strict=True)]


def _cell(share: float | None) -> Cell:
    return None if share is None else (percent(share, 1), share)


def _worst_classes(classes: Sequence[str], trees: Mapping[str, Tree]) -> list[int]:
    """Return the classes to draw: all in order, or of many the worst of the best group, the worst first."""
    if len(classes) <= MOST_CLASSES:
        return list(range(len(classes)))
    best = max(trees.values(), key=lambda tree: sum(tree.correct) / max(1, sum(tree.samples)))
    shares = [2.0 if share is None else share for share in _shares(best)]
    return sorted(range(len(classes)), key=shares.__getitem__)[:MOST_ROWS]


def _matrix(tree: Tree, name: str) -> Chart:
    """Draw the confusion matrix; the colour of a cell is its share of the class."""
    classes, size = tree.classes, len(tree.classes)
    counts = np.zeros((size, size), int)
    for row, column, count in tree.confused:
        counts[row, column] = count
    share = counts / np.maximum(1, np.array(tree.samples))[:, None]
    np.fill_diagonal(counts, tree.correct)
    short = [shorten(label, _LONGEST) for label in classes]
    left, top = 2 * EDGE + LABEL + 8 + max(text_width(label, TICK) for label in short), EDGE + TITLE + 14
    cell = max(14.0, min(40.0, (_WIDTH - left - EDGE) / size))
    width, bottom = max(_WIDTH, left + cell * size + EDGE), top + cell * size
    is_long = max(map(len, short)) > 3  # labels below the columns are turned
    below = bottom + (max(text_width(label, TICK) for label in short) if is_long else TICK) + 10
    title = f"{name}: confusion matrix"
    parts = [text_line(title, EDGE, EDGE + TITLE * 0.8, TITLE, room=width - 2 * EDGE, more='font-weight="600"')]
    parts.append(
        f'<path d="M{left:g} {top:g}H{left + cell * size:g}V{bottom:g}H{left:g}Z" fill="none" stroke="{GRID}"/>'
    )
    for i, label in enumerate(short):
        middle = cell * (i + 0.5)
        parts.append(text_line(label, left - 6, top + middle + TICK * 0.35, min(TICK, cell - 2), anchor="end"))
        x, y = left + middle, bottom + 6 + (0 if is_long else TICK)
        turned = f'transform="rotate(-90 {x:.1f} {y:.1f})" dy="4"' if is_long else ""
        anchor = "end" if is_long else "middle"
        parts.append(text_line(label, x, y, min(TICK, cell - 2), anchor=anchor, more=turned))
    for i, j in np.argwhere(counts).tolist():
        x, y = left + cell * j, top + cell * i
        opacity = 0.6 * share[i, j] / max(0.05, share.max())
        hint = f"<title>{escape(f'{classes[i]}, predicted as {classes[j]}: {counts[i, j]}')}</title>"
        place = f'x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{cell - 1:.1f}" height="{cell - 1:.1f}"'
        fill = f'fill="{PALETTE[1]}" fill-opacity="{opacity:.2f}"'
        number = text_line(str(counts[i, j]), x + cell / 2, y + cell / 2 + 4, 11, anchor="middle", room=cell - 2)
        parts.append(f"<g>{hint}<rect {place} {fill}/>{number}</g>")
    parts.append(text_line("predicted as", left + cell * size / 2, below + LABEL, LABEL, anchor="middle"))
    x, y = EDGE + LABEL * 0.8, top + cell * size / 2
    parts.append(text_line("label", x, y, LABEL, anchor="middle", more=f'transform="rotate(-90 {x:.1f} {y:.1f})"'))
    return Chart(document(parts, title, width, below + LABEL + EDGE))


def _pairs(tree: Tree, name: str) -> Chart:
    """Draw the most confused pairs of many classes as bars."""
    rows = tree.confused[:MOST_ROWS]
    labels = [f"{tree.classes[label]} → {tree.classes[guess]}" for label, guess, _ in rows]
    counts = [count for *_, count in rows]
    return bar_chart(labels, {name: counts}, title=f"{name}: confused", xlabel="samples: label → prediction")


def _picture(image: predictions.WorstImage) -> str:
    height, width, channels = image.size
    pixels = torch.frombuffer(bytearray(image.decode()), dtype=torch.uint8).view(height, width, channels)
    return png_uri(pixels[..., 0] if channels == 1 else pixels.movedim(-1, 0))


def _caption(tree: Tree, image: predictions.WorstImage) -> tuple[str, str]:
    """Return the line below an image, and what is said when the pointer rests on it."""
    label, guess = (tree.classes[i] for i in (image.label, image.prediction))
    number = f"{tree.split} image {image.index}: {label}, predicted as {guess}, loss {image.loss:.3g}"
    return f"{label} → {guess}, {image.confidence:.0%}", number
