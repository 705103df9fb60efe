"""Evaluate a run: accuracy, loss, energy; verification, few-shot or identification for unseen classes."""

from __future__ import annotations

import argparse
import json
from typing import Any

from . import _loading
from ._output import integer, real, user_errors


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
    group.add_argument(
        "--far",
        metavar="F",
        type=real("above 0 and below 1", lambda value: 0 < value < 1),
        help="choose the threshold of the cosine with this false accept rate, with confidence intervals, from all "
        "pairs of the split or those of --pairs",
    )
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
        "pairs": {"pairs": options.pairs if options.far is None else None},
        "threshold": {"far": options.far},
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
    from ..train.inference.scores import OpenScores, Scores, open_scores, scores

    with user_errors(options):
        loaded, config = _loading.load_data_run(options)
        measure, arguments = _measure(options)
        result: Scores | OpenScores
        if measure is None:
            result = scores(loaded, options.split, config, write=True)
        else:
            if options.pairs is not None:
                arguments["pairs"] = read_pairs(options.pairs)
            result = open_scores(loaded, options.split, config, measure=measure, **arguments)
    print(json.dumps({"path": str(loaded.path), **result.to_dict()}, indent=2) if options.json else result)
    return 0
