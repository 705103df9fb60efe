"""`hypersphere list [KIND]`: the names that a config and the command line take."""

from __future__ import annotations

import argparse
import json
import shutil
import textwrap

from .. import recipes
from ..train import _names
from ._output import print_table

#: what is listed → its key in the tables of names
KINDS = {
    "models": "model",
    "data": "data",
    "similarities": "similarity",
    "losses": "loss",
    "methods": "method",
    "measures": "measure",
    "optimizers": "optimizer",
    "schedules": "schedule",
    "augmentations": "augmentation",
    "recipes": None,
}
# Of each kind, the flag that takes the names and what stands beside them.
_FLAGS = {
    "models": ("--model.name", "takes"),
    "data": ("--data.name", "has"),
    "similarities": ("--model.similarity", ""),
    "losses": ("--loss.name", "settings"),
    "methods": ("--rotation.method", ""),
    "measures": ("--energy.measure", ""),
    "optimizers": ("--optimizer.name", ""),
    "schedules": ("--schedule.name", ""),
    "augmentations": ("--data.augment", ""),
    "recipes": ("hypersphere train", "what it is"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kind", metavar="KIND", nargs="?", choices=[*KINDS], help=f"{', '.join(KINDS)}; all in short if left out"
    )
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")


def run(options: argparse.Namespace) -> int:
    kinds = KINDS if options.kind is None else [options.kind]
    if options.json:
        found = {kind: _described(kind) if kind == "recipes" else [*_described(kind)] for kind in kinds}
        print(json.dumps(found if options.kind is None else found[options.kind], indent=2))
    elif options.kind is None:
        width = shutil.get_terminal_size().columns
        for kind in kinds:
            names = ", ".join(_described(kind))
            print(f"{kind} ({_FLAGS[kind][0]})")
            lines = textwrap.wrap(names, max(width - 2, 40), break_long_words=False, break_on_hyphens=False)
            print(textwrap.indent("\n".join(lines), "  "))
    else:
        flag, header = _FLAGS[options.kind]
        described = _described(options.kind)
        if header:
            print_table([flag, header], [*described.items()], left=2)
        else:
            print("\n".join(described))
    return 0


def _described(kind: str) -> dict[str, str]:
    """The names of a kind, and what is to be said of each."""
    if kind == "recipes":
        return {name: recipes.describe(name) for name in recipes.names()}
    names = _names.NAMES[KINDS[kind] or ""]
    if kind == "models":
        return {name: _names.kind_of_model(name) or "" for name in names}
    if kind == "data":
        return {name: _names.kind_of_data(name) or "" for name in names}
    if kind == "losses":
        return {name: ", ".join(_names.LOSS_OPTIONS[name]) for name in names}
    return dict.fromkeys(names, "")
