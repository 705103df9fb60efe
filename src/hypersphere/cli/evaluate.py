"""Compute the accuracy, loss and energies of a run."""

from __future__ import annotations

import argparse
import json
from typing import Any

from . import _loading
from ._output import integer, print_table

MOST_CLASSES = 20  # that are listed, of many the worst


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _loading.add_run(parser)
    parser.add_argument(
        "--split",
        choices=("test", "validation", "train"),
        help="split to evaluate (default: test, or validation if there is no test split)",
    )
    parser.add_argument("--data.root", metavar="DIR", dest="root", help="dataset folder (default: as in training)")
    size = "batch size (default: as in training)"
    parser.add_argument("--batch_size", metavar="N", type=integer(1, 10**7), help=size)
    device = "device (auto, cpu, mps, cuda or cuda:N) (default: auto)"
    parser.add_argument("--device", metavar="NAME", default="auto", help=device)
    parser.add_argument("--json", action="store_true", help="print JSON only")


def run(options: argparse.Namespace) -> int:
    from ..train.config import derive
    from ..train.inference.scores import scores

    given = {"data.root": options.root, "data.batch_size": options.batch_size, "device": options.device}
    try:
        loaded = _loading.load_options_run(options)
        if options.root is not None and loaded.config.data.name == "digits":
            raise ValueError("this run uses digits, which needs no files: remove --data.root")
        config = derive(loaded.config, {key: value for key, value in given.items() if value is not None})
        figures = scores(loaded, options.split, config)
    except (OSError, ImportError, ValueError) as error:
        options.error(" ".join(str(error).split()))
    if options.json:
        print(json.dumps({"path": str(loaded.path), **figures}, indent=2))
    else:
        _print(figures, f"{loaded.config.model.name} on {loaded.config.data.name}")
    return 0


def _print(figures: dict[str, Any], title: str) -> None:
    where = f"{title}, {figures['split']}, step {figures['step']}"
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


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def _shown(name: str) -> str:
    """Format a class name; in text data it may be a line end."""
    return name if name.isprintable() and name.strip() else repr(name)
