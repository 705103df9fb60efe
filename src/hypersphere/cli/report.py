"""Write one HTML page about runs: results, settings, curves, energies, neurons and features."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path

from ._output import print_table, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run folder")
    out = "file to write (default: report.html)"
    parser.add_argument("--html", metavar="OUT", type=Path, default=Path("report.html"), help=out)
    parser.add_argument(
        "--recipe", metavar="FILE", help="recipe file of the runs, if that registers the dataset or the network"
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")


def run(options: argparse.Namespace) -> int:
    from .. import recipes
    from ..report.run_files import group_runs, read_runs
    from ..report.run_page import build_page, spread, summarize

    out = options.html
    try:
        if out.is_dir() or not out.absolute().parent.is_dir():
            raise ValueError(f"--html must be a file in a folder that exists, got {str(out)!r}")
        if not os.access(out.absolute().parent, os.W_OK):
            raise ValueError(f"--html: no permission to write in {str(out.absolute().parent)!r}")
        if options.recipe is not None:
            with redirect_stdout(sys.stderr):  # what the file prints is not our output
                recipes.load(options.recipe)
        groups = group_runs(read_runs(options.runs))
        build_page(groups).write(out)
    except (OSError, ImportError, ValueError) as error:
        options.error(" ".join(str(error).split()))
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
