"""Draw a figure of the papers or of their theory: SVG, PNG or an HTML page."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._internal import catalog
from .._internal.tables import TextTable, number
from ._output import file_to_write, print_table, user_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", choices=[*catalog.FIGURES], help="the figure; `hypersphere list figures` has them all"
    )
    parser.add_argument("inputs", metavar="RUN", nargs="*", help="run folders or files, if the figure takes some")
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=file_to_write(".svg", ".png", hint=" (a page: --html FILE)"),
        help="write the picture (default: NAME.svg)",
    )
    parser.add_argument(
        "--html", metavar="FILE", type=file_to_write(), help="write an HTML page instead, with spheres to rotate"
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")


def run(options: argparse.Namespace) -> int:
    from ..papers.figures import FIGURES
    from ..papers.figures.writing import check_path, write, write_page

    figure, page = FIGURES[options.name], options.html
    path = options.out or (Path(f"{options.name}.svg") if page is None else None)
    with user_errors(options):
        if path is not None:
            check_path(path)
        figure.check(options.name, options.inputs)
        drawing = figure.draw([Path(name) for name in options.inputs])
        if path is not None:
            write(drawing, path)
        if page is not None:
            write_page(drawing, page, f"{figure.about[:1].upper()}{figure.about[1:]}", figure.source)
    written = {key: str(file) for key, file in (("path", path), ("page", page)) if file is not None}
    if options.json:
        print(json.dumps({"figure": options.name, **written, "rows": list(drawing.rows)}, indent=2))
        return 0
    if drawing.rows:
        print_table(_table(drawing.rows))
    for note in drawing.notes:
        print(note)
    print(*written.values(), sep="\n")
    return 0


def _table(rows: Sequence[Mapping[str, Any]]) -> TextTable:
    header = list(rows[0])
    cells = [
        [number(value) if isinstance(value, float | None) else str(value) for value in row.values()] for row in rows
    ]
    return TextTable(header, cells, left=sum(isinstance(value, str) for value in rows[0].values()))
