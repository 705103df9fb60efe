"""List the names that flags take: models, data, losses, recipes, ...; or the layers of a network."""

from __future__ import annotations

import argparse
import json
import shutil
import textwrap
from collections.abc import Collection

from .._internal import catalog
from .._internal.tables import TextTable
from ._output import print_table

#: what is listed → its table, the flag that takes the names, and the title of the column beside them
KINDS: dict[str, tuple[Collection[str], str, str]] = {
    "models": (catalog.MODELS, "--model.name", "data"),
    "data": (catalog.DATA, "--data.name", "kind"),
    "similarities": (catalog.SIMILARITIES, "--model.similarity", ""),
    "losses": (catalog.LOSSES, "--loss.name", "settings"),
    "methods": (catalog.METHODS, "--rotation.method", ""),
    "measures": (catalog.MEASURES, "--energy.measure", ""),
    "evenness": (catalog.EVENNESS, "--embedding.measure", "settings"),
    "optimizers": (catalog.OPTIMIZERS, "--optimizer.name", ""),
    "schedules": (catalog.SCHEDULES, "--schedule.name", ""),
    "augmentations": (catalog.AUGMENTATIONS, "--data.augment", ""),
    "recipes": (catalog.RECIPES, "hypersphere train", "description"),
    "figures": (catalog.FIGURES, "hypersphere figure", "what is drawn"),
}
LAYERS = "layers"
DESCRIBED = ("recipes", "figures")  # with their descriptions in JSON


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = f"{', '.join(KINDS)}; layers MODEL: the layers of a network; without KIND: all, in short"
    parser.add_argument("kind", metavar="KIND", nargs="?", choices=[*KINDS, LAYERS], help=kinds)
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", choices=[*catalog.MODELS], help="name of a network, for layers"
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")


def run(options: argparse.Namespace) -> int:
    if options.kind == LAYERS:
        return _list_layers(options)
    if options.model is not None:
        options.error(f"only layers takes a MODEL, got {options.model!r}")
    kinds = KINDS if options.kind is None else [options.kind]
    if options.json:
        tables = {kind: KINDS[kind][0] if kind in DESCRIBED else [*KINDS[kind][0]] for kind in kinds}
        print(json.dumps(tables if options.kind is None else tables[options.kind], indent=2))
    elif options.kind is None:
        width = max(shutil.get_terminal_size().columns - 2, 40)
        for kind, (names, flag, _) in KINDS.items():
            lines = textwrap.wrap(", ".join(names), width, break_long_words=False, break_on_hyphens=False)
            print(f"{kind} ({flag})", textwrap.indent("\n".join(lines), "  "), sep="\n")
    else:
        names, flag, title = KINDS[options.kind]
        if title and isinstance(names, dict):
            rows = [[name, value if isinstance(value, str) else ", ".join(value)] for name, value in names.items()]
            print_table(TextTable([flag, title], rows, left=2))
        else:
            print("\n".join(names))
    return 0


def _list_layers(options: argparse.Namespace) -> int:
    """Print the layers with neurons of a network of hypersphere.models."""
    if options.model is None:
        options.error("layers needs a MODEL: see hypersphere list models")
    from torch import device

    from .. import models
    from ..neurons import select

    with device("meta"):
        layers = select(models.create(options.model))
    print(json.dumps(layers.to_dict()["layers"], indent=2) if options.json else layers)
    return 0
