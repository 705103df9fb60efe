"""Draw a figure of the papers or of their theory: SVG, PNG or HTML."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import catalog
from ._output import print_table, user_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", choices=[*catalog.FIGURES], help="the figure; `hypersphere list figures` has them all"
    )
    parser.add_argument("inputs", metavar="RUN", nargs="*", help="run folders or files, if the figure takes some")
    parser.add_argument("--out", metavar="FILE", type=Path, help=".svg, .png or .html (default: NAME.svg)")
    parser.add_argument("--json", action="store_true", help="print JSON only")


def run(options: argparse.Namespace) -> int:
    from ..figures import FIGURES
    from ..figures.writing import check_path, write

    figure, path = FIGURES[options.name], options.out or Path(f"{options.name}.svg")
    with user_errors(options):
        check_path(path)
        figure.check(options.name, options.inputs)
        drawing = figure.draw([Path(each) for each in options.inputs])
        write(drawing, path, f"{figure.about[:1].upper()}{figure.about[1:]}", figure.source)
    if options.json:
        print(json.dumps({"figure": options.name, "path": str(path), "rows": list(drawing.rows)}, indent=2))
        return 0
    if drawing.rows:
        _print(drawing.rows)
    for note in drawing.notes:
        print(note)
    print(path)
    return 0


def _print(rows: Sequence[Mapping[str, Any]]) -> None:
    header = list(rows[0])
    texts = [[_cell(row[key]) for key in header] for row in rows]
    print_table(header, texts, left=sum(isinstance(value, str) for value in rows[0].values()))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.3e}"
    return "-" if value is None else str(value)
