"""Report which layers of a model file waste neurons, or what changed between two files."""

from __future__ import annotations

import argparse
import json

from ._output import file_to_write, print_table, printable, user_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help=".safetensors file or folder of shards, .pt, .pth, .bin, .onnx, or run folder; two: what changed",
    )
    parser.add_argument("--html", metavar="FILE", type=file_to_write(), help="write a page with tables and charts")
    parser.add_argument("--json", action="store_true", help="print JSON only, with angles in radians")


def run(options: argparse.Namespace) -> int:
    if len(options.files) > 2:
        options.error(f"one FILE or two, got {len(options.files)}")
    from ..inspection import compare, inspect
    from ..inspection.page import make_page

    with user_errors(options):
        result = inspect(options.files[0]) if len(options.files) == 1 else compare(*options.files)
        if options.html is not None:
            make_page(result).write(options.html)
    if options.json:
        print(json.dumps(result.to_dict(), indent=2, allow_nan=False))
        return 0
    for table in result.tables():
        print_table(table)
        print()
    print(printable("\n".join(result.notes())))
    if options.html is not None:
        print(printable(f"\npage: {options.html}"))
    return 0
