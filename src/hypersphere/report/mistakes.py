"""What the networks of runs confuse: confusion matrix, accuracy of each class and the worst images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..train.storage import predictions
from ..train.storage.reading import one_line
from .page import Cell, Page, colour
from .png import png_uri
from .run_files import Group, RunFiles
from .svg import PALETTE

MOST_CLASSES = 40  # of a matrix; of more the most confused pairs are drawn
MOST_ROWS = 25  # of bars, of more classes or pairs
MOST_GROUPS = 8
MOST_IMAGES = 12  # of each of several groups
_LONGEST = 22  # letters of a class at an axis

Tree = Mapping[str, Any]


def read_predictions(groups: Sequence[Group]) -> tuple[dict[str, Tree], list[str]]:
    """Return the predictions of each group, of its first run that has them, and notes on what is missing."""
    found, notes, without = dict[str, Tree](), list[str](), list[RunFiles]()
    for group in groups:
        finished = [run for run in group.runs if run.result is not None and run.result.get("accuracy") is not None]
        for run in finished:
            file = predictions.file_of(run.path, str((run.result or {}).get("split")))
            try:
                tree = predictions.read(file) if file.exists() else None
                if tree is not None and run.model is not None and tree["model"] != run.model:
                    raise ValueError(
                        f"{file} belongs to other weights; `hypersphere evaluate {run.path}` writes it anew"
                    )
            except (OSError, ValueError) as error:
                notes.append(f"{run.name}: {one_line(error)}.")
                continue
            if tree is not None:
                tree["classes"] = [_shown(name) for name in tree["classes"]]
                found[group.name if len(group.runs) == 1 else f"{group.name} ({run.name})"] = tree
                break
        else:
            without += finished[:1]
    if without:
        names = ", ".join(run.name for run in without[:5]) + (", …" if len(without) > 5 else "")
        command = f"`hypersphere evaluate {without[0].path}`"
        notes.append(f"{names}: which classes are confused is not known; {command} writes it into the run folder.")
    return found, notes


def add_mistakes(page: Page, found: Mapping[str, Tree]) -> list[str]:
    """Add the pictures; return notes on what was left out."""
    if not found:
        return []
    page.section("Mistakes")
    shown = dict(list(found.items())[:MOST_GROUPS])
    for classes, trees in _by_classes(shown):
        rows = _worst_classes(classes, trees)
        some = f"the {len(rows)} worst of {len(classes)} classes" if len(rows) < len(classes) else "each class"
        page.chart(_accuracies(classes, trees, rows, f"accuracy of {some}"), height=_height(len(rows)))
        for name, tree in trees.items():
            figure = _matrix(tree) if len(classes) <= MOST_CLASSES else _pairs(tree)
            title = {"title": {"text": f"{name}: {'confusion matrix' if len(classes) <= MOST_CLASSES else 'confused'}"}}
            height = max(380, 90 + 24 * len(classes)) if len(classes) <= MOST_CLASSES else _height(MOST_ROWS)
            page.chart({**figure, "layout": {**figure["layout"], **title}}, height=height)
    if any(len(tree["classes"]) <= MOST_CLASSES for tree in shown.values()):
        page.text("In a matrix, numbers are samples; the colour is the share of the class that is predicted so.")
    for name, tree in shown.items():
        worst = tree["worst"][: MOST_IMAGES if len(shown) > 1 else None]
        if worst:
            page.images(
                [(_picture(image), *_caption(tree, image)) for image in worst],
                caption=f"{name}: images of {tree['split']} predicted wrong with the highest loss. "
                "Below them: label → prediction, and how sure the network was.",
            )
    return [f"Mistakes of the first {MOST_GROUPS} groups are drawn."] if len(found) > MOST_GROUPS else []


def add_tables(page: Page, found: Mapping[str, Tree]) -> None:
    """Add the accuracy of each class, and the most confused pairs."""
    for classes, trees in _by_classes(dict(list(found.items())[:MOST_GROUPS])):
        shares = {name: _shares(tree) for name, tree in trees.items()}
        first = next(iter(trees.values()))
        rows: list[list[Cell]] = [
            [name, first["samples"][i], *(_percent(share[i]) for share in shares.values())]
            for i, name in enumerate(classes)
        ]
        page.table(["class", f"samples of {first['split']}", *trees], rows, caption="Accuracy of each class.")
        pairs: list[list[Cell]] = [
            [name, classes[label], classes[guess], count, _percent(count / max(1, tree["samples"][label]))]
            for name, tree in trees.items()
            for label, guess, count in tree["confused"][:MOST_ROWS]
        ]
        if pairs:
            header = ["group", "label", "predicted as", "samples", "share of the class"]
            page.table(header, pairs, caption="The most confused classes.")


def _shown(name: str) -> str:
    """Return a class name; in text data it may be a line end."""
    return name if name.strip() else repr(name)


def _by_classes(found: Mapping[str, Tree]) -> list[tuple[list[str], dict[str, Tree]]]:
    """Put groups with the same classes, and as many samples of them, together."""
    together: dict[str, dict[str, Tree]] = {}
    for name, tree in found.items():
        together.setdefault(repr((tree["classes"], tree["split"], tree["samples"])), {})[name] = tree
    return [(next(iter(trees.values()))["classes"], trees) for trees in together.values()]


def _shares(tree: Tree) -> list[float]:
    """Return the accuracy of each class, nan without samples."""
    return [right / count if count else np.nan for right, count in zip(tree["correct"], tree["samples"], strict=True)]


def _percent(share: float) -> Cell:
    return None if np.isnan(share) else (f"{share:.1%}", share)


def _worst_classes(classes: Sequence[str], trees: Mapping[str, Tree]) -> list[int]:
    """Return the classes to draw: all in order, or of many the worst of the best group, the worst first."""
    if len(classes) <= MOST_CLASSES:
        return list(range(len(classes)))
    best = max(trees.values(), key=lambda tree: sum(tree["correct"]) / max(1, sum(tree["samples"])))
    return np.argsort(np.nan_to_num(_shares(best), nan=2.0), kind="stable")[:MOST_ROWS].tolist()


def _height(rows: int) -> int:
    return 120 + 22 * max(rows, 6)


def _labels(names: Sequence[str]) -> dict[str, Any]:
    """Return an axis of classes, by number: two of them may have the same short name."""
    short = [name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in names]
    return {"tickvals": list(range(len(names))), "ticktext": short}


def _accuracies(classes: Sequence[str], trees: Mapping[str, Tree], rows: Sequence[int], title: str) -> dict[str, Any]:
    """Draw a bar for each class, or a dot for each group."""
    kind: dict[str, Any] = {"type": "bar", "orientation": "h"} if len(trees) == 1 else {"mode": "markers"}
    traces = []
    for i, (name, tree) in enumerate(trees.items()):
        shares = _shares(tree)
        marker = {"color": colour(i), **({} if len(trees) == 1 else {"size": 10, "symbol": i // len(PALETTE)})}
        places = {"x": [100 * shares[row] for row in rows], "y": list(range(len(rows)))}
        hover = {"hovertext": [classes[row] for row in rows], "hoverinfo": "x+text+name"}
        traces.append({**kind, **places, **hover, "name": name, "marker": marker})
    up = {"autorange": "reversed", **_labels([classes[row] for row in rows])}
    layout = {
        "title": {"text": title},
        "xaxis": {"title": {"text": "accuracy %"}, "range": [0, 103]},
        "yaxis": up,
        "showlegend": len(trees) > 1,
        "hovermode": "closest",
    }
    return {"data": traces, "layout": layout}


def _matrix(tree: Tree) -> dict[str, Any]:
    size = len(tree["classes"])
    counts = np.zeros((size, size), int)
    for label, guess, count in tree["confused"]:
        counts[label, guess] = count
    share = 100 * counts / np.maximum(1, np.array(tree["samples"]))[:, None]
    np.fill_diagonal(counts, tree["correct"])
    texts = [[str(count) if count else "" for count in row] for row in counts.tolist()]
    names = tree["classes"]
    hover = [
        [f"{names[i]}, predicted as {names[j]}: {count}" if count else "" for j, count in enumerate(row)]
        for i, row in enumerate(counts.tolist())
    ]
    trace = {
        **{"hovertext": hover, "hoverinfo": "text"},
        **{"type": "heatmap", "z": share, "text": texts, "texttemplate": "%{text}", "xgap": 1, "ygap": 1},
        **{"colorscale": [[0, colour(1, 0)], [1, colour(1, 0.6)]], "zmin": 0, "zmax": max(5.0, float(share.max()))},
        **{"showscale": False, "textfont": {"color": colour(len(PALETTE) - 1), "size": 11 if size <= 20 else 8}},
    }
    axis = _labels(names)
    across = {"title": {"text": "predicted as"}, "showgrid": False, **axis}
    up = {"title": {"text": "label"}, "autorange": "reversed", "showgrid": False, "zeroline": False, **axis}
    return {"data": [trace], "layout": {"xaxis": {**across, "zeroline": False}, "yaxis": up}}


def _pairs(tree: Tree) -> dict[str, Any]:
    """Draw the most confused pairs of many classes as bars."""
    rows = tree["confused"][:MOST_ROWS]
    names = [f"{tree['classes'][label]} → {tree['classes'][guess]}" for label, guess, _ in rows]
    bars = {"type": "bar", "orientation": "h", "x": [row[2] for row in rows], "y": list(range(len(rows)))}
    across = {"title": {"text": "samples: label → prediction"}, "rangemode": "tozero"}
    up = {"autorange": "reversed", "tickvals": list(range(len(rows))), "ticktext": names}
    return {"data": [{**bars, "marker": {"color": colour(1)}}], "layout": {"xaxis": across, "yaxis": up}}


def _picture(image: Tree) -> str:
    height, width, channels = image["size"]
    pixels = torch.frombuffer(bytearray(image["pixels"]), dtype=torch.uint8).view(height, width, channels)
    return png_uri(pixels[..., 0] if channels == 1 else pixels.movedim(-1, 0))


def _caption(tree: Tree, image: Tree) -> tuple[str, str]:
    """Return the line below an image, and what is said when the pointer rests on it."""
    label, guess = (tree["classes"][image[key]] for key in ("label", "prediction"))
    number = f"{tree['split']} image {image['index']}: {label}, predicted as {guess}, loss {image['loss']:.3g}"
    return f"{label} → {guess}, {image['confidence']:.0%}", number
