"""Write one HTML page about runs: results, settings, curves, energies, neurons and features."""

from __future__ import annotations

import argparse
import json

from .._internal.tables import TextTable
from .._internal.text import escaped
from . import _loading
from ._output import file_to_write, print_table, printable, user_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run folder")
    html = "write the page to this file (default: report.html)"
    parser.add_argument("--html", metavar="FILE", type=file_to_write(), default="report.html", help=html)
    _loading.add_recipe(parser, "runs")
    parser.add_argument("--json", action="store_true", help="print JSON only")


def run(options: argparse.Namespace) -> int:
    from ..papers import gan as gan  # registers it
    from ..report.run_files import format_metric, group_runs, read_runs, unranked
    from ..report.run_page import build_page, summarize

    out = options.html
    with user_errors(options):
        if options.recipe is not None:
            _loading.load_recipe(options.recipe)
        groups = group_runs(read_runs(options.runs))
        build_page(groups).write(out)
    if options.json:
        print(json.dumps({**summarize(groups), "page": str(out.absolute())}, indent=2))
        return 0
    keys = ("accuracy", "loss", "energy", "seconds")
    rows = [
        [escaped(group.name), str(len(group.runs)), *(format_metric(key, group.metric(key)) for key in keys)]
        for group in groups
    ]
    print_table(TextTable(["group", "runs", *keys], rows))
    if apart := unranked(groups):
        print(printable(apart))
    print(printable(f"page: {out.absolute()}"))
    return 0
