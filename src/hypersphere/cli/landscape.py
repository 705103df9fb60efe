"""Draw the loss and the error of a run around its weights, along random directions."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from . import _loading
from ._output import file_to_write, integer, print_table, printable, real, user_errors

if TYPE_CHECKING:
    from ..train.inference.landscape import Landscape

WIDEST = 41  # points along an axis that are printed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _loading.add_run(parser)
    parser.add_argument(
        "--direction",
        choices=("normal", "uniform"),
        default="normal",
        help="distribution of the directions: N(0, 1), or [0, 1] (default: normal)",
    )
    parser.add_argument(
        "--size", metavar="N", type=integer(3, 1001), default=21, help="points along each axis, odd (default: 21)"
    )
    span = "the grid reaches from -X to X (default: 1.5 for normal, 1 for uniform)"
    parser.add_argument("--span", metavar="X", type=real("a number above 0", lambda x: 0 < x <= 1e6), help=span)
    parser.add_argument(
        "--samples", metavar="N", type=integer(1, 10**9), help="evaluate N random samples (default: all)"
    )
    parser.add_argument("--seed", metavar="N", type=integer(0, 2**63 - 1), default=0, help="random seed (default: 0)")
    _loading.add_data(parser)
    html = "also write an HTML page with surfaces to rotate and contours"
    parser.add_argument("--html", metavar="FILE", type=file_to_write(), help=html)
    parser.add_argument("--json", action="store_true", help="print JSON only")


def run(options: argparse.Namespace) -> int:
    from ..report.landscape import contours
    from ..train.inference.landscape import landscape
    from ..train.storage import landscapes, layout

    arguments = {key: getattr(options, key) for key in ("direction", "size", "span", "samples", "split", "seed")}
    with user_errors(options):
        loaded, config = _loading.load_data_run(options)
        found = landscape(loaded, **arguments, config=config, folder=loaded.path / layout.LANDSCAPES)
        file = loaded.path / layout.LANDSCAPES / layout.landscape(options.direction, found.settings.split)
        picture = file.with_suffix(".svg")
        title = f"{loaded.path.name}: {found.settings.title}"
        contours(landscapes.read(file), title).write(picture)
        if options.html is not None:
            _write_page(options.html, loaded.path.name, title, file)
    if options.json:
        files = {"path": str(loaded.path), "file": str(file), "picture": str(picture)}
        print(json.dumps(files | found.to_dict(), indent=2, allow_nan=False))
    else:
        _print(found, f"{loaded.config.model.name} on {loaded.config.data.name}")
        also = "" if options.html is None else f" and {options.html}"
        print(printable(f"wrote {file}, {picture.name}{also}"))
    return 0


def _write_page(out: Path, name: str, title: str, file: Path) -> None:
    from ..report.landscape import add_landscape
    from ..report.page import Page
    from ..train.storage import landscapes

    page = Page(title)
    page.section("Landscape")
    add_landscape(page, name, landscapes.read(file))
    page.write(out)


def _print(found: Landscape, network: str) -> None:
    for table in found.tables():
        print_table(replace(table, title=f"{network}, {table.title}"))
    if len(found.alpha) <= WIDEST:
        print("\nerror in tenths, α to the right, β upwards:")
        for row in found.error.T.flip(0).tolist():
            print(" ".join(str(min(9, int(value * 10))) for value in row))
        print()
