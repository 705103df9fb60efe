"""Evaluate a run: accuracy, loss, energy; verification, few-shot or identification for unseen classes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from .._internal.tables import TextTable, percent
from . import _loading
from ._output import integer, print_table, user_errors

MOST_CLASSES = 20  # listed; of more, the worst


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _loading.add_run(parser)
    _loading.add_data(parser)
    _add_open_set(parser)
    parser.add_argument("--json", action="store_true", help="print JSON only")


def _add_open_set(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "unseen classes, by embeddings (the default for datasets whose test classes are unseen)"
    )
    group.add_argument("--pairs", metavar="FILE", help="verify the pairs of this list (default: the dataset's own)")
    group.add_argument("--episodes", metavar="N", type=integer(2, 10**6), help="few-shot episodes")
    for name, default, what in (("ways", 5, "classes"), ("shots", 5, "training samples"), ("queries", 15, "queries")):
        of = "of an episode" if name == "ways" else "per class of an episode"
        group.add_argument(
            f"--{name}", metavar="N", type=integer(2 if name == "ways" else 1, 10**4), help=f"{what} {of} ({default})"
        )
    group.add_argument(
        "--classifier",
        choices=("linear", "cosine"),
        help="classifier of an episode: baseline or baseline++ (default: cosine after an angular loss)",
    )
    group.add_argument(
        "--identify", action="store_true", help="rank-k identification: the first sample of each class is the gallery"
    )
    group.add_argument(
        "--distractors",
        metavar="N",
        type=integer(0, 10**7),
        help="samples of other classes in the gallery, from classes with one sample (default: all)",
    )


def _measure(options: argparse.Namespace) -> tuple[str | None, dict[str, Any]]:
    """Return the measure of the flags and its arguments; ValueError for flags of several measures."""
    flags = {
        "pairs": {"pairs": options.pairs},
        "episodes": {name: getattr(options, name) for name in ("episodes", "ways", "shots", "queries", "classifier")},
        "identification": {"identify": options.identify or None, "distractors": options.distractors},
    }
    given = {
        measure: {name: value for name, value in values.items() if value is not None}
        for measure, values in flags.items()
    }
    chosen = [measure for measure, values in given.items() if values]
    if len(chosen) > 1:
        raise ValueError(f"one measure at a time, got flags of {' and '.join(chosen)}")
    if not chosen:
        return None, {}
    return chosen[0], {name: value for name, value in given[chosen[0]].items() if name not in ("pairs", "identify")}


def run(options: argparse.Namespace) -> int:
    from ..data import read_pairs
    from ..train.inference.scores import open_scores, scores

    with user_errors(options):
        loaded, config = _loading.load_data_run(options)
        measure, arguments = _measure(options)
        if measure is None:
            metrics = scores(loaded, options.split, config, write=True)
        else:
            if options.pairs is not None:
                arguments["pairs"] = read_pairs(options.pairs)
            metrics = open_scores(loaded, options.split, config, measure=measure, **arguments)
    if options.json:
        print(json.dumps({"path": str(loaded.path), **metrics}, indent=2))
        return 0
    title = f"{loaded.config.model.name} on {loaded.config.data.name}, {metrics['split']}, step {metrics['step']}"
    for i, table in enumerate((_open_tables if "measure" in metrics else _tables)(metrics, title)):
        if i:
            print()
        print_table(table)
    return 0


def _tables(metrics: dict[str, Any], title: str) -> Iterator[TextTable]:
    cells = {
        "samples": f"{metrics['samples']:,}",
        "accuracy": percent(metrics["accuracy"]),
        **({"top 5": percent(metrics["top5"])} if "top5" in metrics else {}),
        "loss": f"{metrics['loss']:.4f}",
        "energy": f"{metrics['energy']:.4f}",
    }
    yield TextTable([*cells], [[*cells.values()]], left=0, title=title)
    classes = list(metrics["classes"].items())
    header = "class"
    if len(classes) > MOST_CLASSES:
        seen = [(name, score) for name, score in classes if score["samples"]]
        classes = sorted(seen, key=lambda pair: pair[1]["accuracy"])[:MOST_CLASSES]
        header = f"the worst {len(classes)} of {len(metrics['classes'])} classes"
    rows = [[_class_name(name), f"{score['samples']:,}", percent(score["accuracy"])] for name, score in classes]
    yield TextTable([header, "samples", "accuracy"], rows)
    if metrics["energies"]:
        yield TextTable(["layer", "energy"], [[name, f"{energy:.4f}"] for name, energy in metrics["energies"].items()])


def _open_tables(metrics: dict[str, Any], title: str) -> Iterator[TextTable]:
    accuracy = percent(metrics.get("accuracy"))
    if metrics["measure"] == "pairs":
        header = ["pairs", "accuracy", "AUC", "EER", *(f"TAR@FAR={far}" for far in metrics["tar"])]
        cells = [f"{accuracy} ± {percent(metrics['std'])}", f"{metrics['auc']:.4f}", percent(metrics["eer"])]
        cells = [f"{metrics['pairs']:,}", *cells, *map(percent, metrics["tar"].values())]
        title += f", {len(metrics['folds'])} folds"
    elif metrics["measure"] == "episodes":
        header = ["episodes", "accuracy", "loss"]
        cells = [f"{metrics['episodes']:,}", f"{accuracy} ± {percent(metrics['interval'])}", f"{metrics['loss']:.4f}"]
        title += f", {metrics['ways']}-way {metrics['shots']}-shot, {metrics['classifier']} classifier"
    else:
        header = ["probes", "gallery", "distractors", *(f"rank {k}" for k in metrics["rates"])]
        cells = [f"{metrics[key]:,}" for key in header[:3]] + [*map(percent, metrics["rates"].values())]
    yield TextTable(header, [cells], left=0, title=title)


def _class_name(name: str) -> str:
    """Format a class name; in text data it may be a line end."""
    return name if name.isprintable() and name.strip() else repr(name)
