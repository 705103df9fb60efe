"""Write one HTML page about runs: results, settings, curves, energies, neurons and features."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from . import _loading
from ._output import print_table, printable, user_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run folder")
    out = "file to write (default: report.html)"
    parser.add_argument("--html", metavar="OUT", type=Path, default=Path("report.html"), help=out)
    _loading.add_recipe(parser, "runs")
    parser.add_argument("--json", action="store_true", help="print JSON only")


def run(options: argparse.Namespace) -> int:
    from ..report.run_files import group_runs, read_runs
    from ..report.run_page import build_page, spread, summarize

    out = options.html
    with user_errors(options):
        if out.is_dir() or not out.absolute().parent.is_dir():
            raise ValueError(f"--html must be a file in a folder that exists, got {str(out)!r}")
        if not os.access(out.absolute().parent, os.W_OK):
            raise ValueError(f"--html: no permission to write in {str(out.absolute().parent)!r}")
        if options.recipe is not None:
            _loading.load_recipe(options.recipe)
        groups = group_runs(read_runs(options.runs))
        build_page(groups).write(out)
    summary = summarize(groups)
    if options.json:
        print(json.dumps({**summary, "page": str(out.absolute())}, indent=2))
        return 0
    rows = [
        [
            printable(each["name"]),
            str(each["runs"]),
            *(spread(each, key)[0] for key in ("accuracy", "loss", "energy", "seconds")),
        ]
        for each in summary["groups"]
    ]
    print_table(["group", "runs", "accuracy", "loss", "energy", "seconds"], rows, left=1)
    print(printable(f"page: {out.absolute()}"))
    return 0
