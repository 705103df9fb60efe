"""Compute the accuracy, loss and energies of a run; on new classes, by pairs, episodes or ranks."""

from __future__ import annotations

import argparse
import json
from typing import Any

from . import _loading
from ._output import integer, print_table, user_errors

MOST_CLASSES = 20  # that are listed, of many the worst


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _loading.add_run(parser)
    _loading.add_data(parser)
    _add_open_set(parser)
    parser.add_argument("--json", action="store_true", help="print JSON only")


def _add_open_set(parser: argparse.ArgumentParser) -> None:
    own = "by their embeddings; a dataset whose test classes are not trained on is evaluated so anyway"
    group = parser.add_argument_group("classes not trained on", own)
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
    """Return what the flags ask for: the measure and its options. ValueError for flags that contradict each other."""
    of_episodes = ("ways", "shots", "queries", "classifier")
    asked = {
        "pairs": options.pairs is not None,
        "episodes": any(getattr(options, name) is not None for name in ("episodes", *of_episodes)),
        "identification": options.identify or options.distractors is not None,
    }
    chosen = [name for name, given in asked.items() if given]
    if len(chosen) > 1:
        raise ValueError(f"one measure at a time, got flags of {' and '.join(chosen)}")
    if not chosen:
        return None, {}
    names = {"pairs": (), "episodes": ("episodes", *of_episodes), "identification": ("distractors",)}[chosen[0]]
    given = {name: getattr(options, name) for name in names}
    return chosen[0], {name: value for name, value in given.items() if value is not None}


def run(options: argparse.Namespace) -> int:
    from ..data import read_pairs
    from ..train.inference.scores import open_scores, scores

    with user_errors(options):
        loaded, config = _loading.load_data_run(options)
        measure, given_to = _measure(options)
        if measure is None:
            figures = scores(loaded, options.split, config, write=True)
        else:
            if options.pairs is not None:
                given_to["pairs"] = read_pairs(options.pairs)
            figures = open_scores(loaded, options.split, config, measure=measure, **given_to)
    if options.json:
        print(json.dumps({"path": str(loaded.path), **figures}, indent=2))
    else:
        _print(figures, f"{loaded.config.model.name} on {loaded.config.data.name}")
    return 0


def _print(figures: dict[str, Any], title: str) -> None:
    where = f"{title}, {figures['split']}, step {figures['step']}"
    if "measure" in figures:
        _print_open(figures, where)
        return
    cells = [
        f"{figures['samples']:,}",
        _percent(figures["accuracy"]),
        f"{figures['loss']:.4f}",
        f"{figures['energy']:.4f}",
    ]
    names = ["samples", "accuracy", "loss", "energy"]
    if "top5" in figures:
        names[2:2], cells[2:2] = ["top 5"], [_percent(figures["top5"])]
    print_table(names, [cells], title=where)
    classes = list(figures["classes"].items())
    header = "class"
    if len(classes) > MOST_CLASSES:
        seen = [(name, each) for name, each in classes if each["samples"]]
        classes = sorted(seen, key=lambda pair: pair[1]["accuracy"])[:MOST_CLASSES]
        header = f"the worst {len(classes)} of {len(figures['classes'])} classes"
    print()
    rows = [[_shown(name), f"{each['samples']:,}", _percent(each["accuracy"])] for name, each in classes]
    print_table([header, "samples", "accuracy"], rows, left=1)
    if figures["energies"]:
        print()
        print_table(["layer", "energy"], [[name, f"{x:.4f}"] for name, x in figures["energies"].items()], left=1)


def _print_open(figures: dict[str, Any], where: str) -> None:
    accuracy = _percent(figures.get("accuracy"))
    if figures["measure"] == "pairs":
        header = ["pairs", "accuracy", "AUC", "EER", *(f"TAR@FAR={far}" for far in figures["tar"])]
        cells = [f"{accuracy} ± {_percent(figures['std'])}", f"{figures['auc']:.4f}", _percent(figures["eer"])]
        cells = [f"{figures['pairs']:,}", *cells, *map(_percent, figures["tar"].values())]
        where += f", {len(figures['folds'])} folds"
    elif figures["measure"] == "episodes":
        header = ["episodes", "accuracy", "loss"]
        cells = [f"{figures['episodes']:,}", f"{accuracy} ± {_percent(figures['interval'])}", f"{figures['loss']:.4f}"]
        where += f", {figures['ways']}-way {figures['shots']}-shot, {figures['classifier']} classifier"
    else:
        header = ["probes", "gallery", "distractors", *(f"rank {k}" for k in figures["rates"])]
        cells = [f"{figures[key]:,}" for key in header[:3]] + [*map(_percent, figures["rates"].values())]
    print_table(header, [cells], title=where)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def _shown(name: str) -> str:
    """Format a class name; in text data it may be a line end."""
    return name if name.isprintable() and name.strip() else repr(name)
