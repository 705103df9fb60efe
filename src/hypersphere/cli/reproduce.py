"""Run a table of the papers and compare the results with the paper's figures."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from .._internal.tables import TextTable
from ._output import integer, print_table, say, user_errors
from ._runs import add_run_arguments, shown

RESULTS, RUNS = "results", "runs/reproduce"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", nargs="?", help="table, such as opt.6; without it: list all tables")
    parser.add_argument("--rows", metavar="A,B", help="only these rows")
    parser.add_argument("--seeds", metavar="K", type=integer(1, 1000), help="runs of each row (default: the row's own)")
    parser.add_argument("--full", action="store_true", help="the paper's own size instead of the small form")
    add_run_arguments(parser)
    parser.add_argument("--show", action="store_true", help="run nothing; print what has been measured")
    parser.add_argument("--device", default="auto", help="auto, cpu, mps, cuda or cuda:N (default: auto)")
    parser.add_argument(
        "--data.root", dest="root", metavar="DIR", help="folder of the official files (default: HYPERSPHERE_DATA)"
    )
    parser.add_argument("--results", metavar="DIR", default=RESULTS, help=f"results files (default: {RESULTS})")
    parser.add_argument("--runs", metavar="DIR", default=RUNS, help=f"run folders (default: {RUNS})")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.set_defaults(error=parser.error)


def run(options: argparse.Namespace) -> int:
    from ..papers.reproduce import runner

    folder, runs = (Path(os.path.expanduser(each)) for each in (options.results, options.runs))
    with user_errors(options, runner.RunFailed):
        rows = [*dict.fromkeys(each.strip() for each in (options.rows or "").split(",") if each.strip())]
        if options.rows is not None and not rows:
            raise ValueError(f"--rows must name rows, such as A,B; got {options.rows!r}")
        for name, path in (("results", folder), ("runs", runs)):
            there = next(each for each in (path, *path.parents) if each.exists())
            if not there.is_dir():
                raise ValueError(f"--{name} must be a folder, but {there} is a file")
        if options.table is None:
            if rows:
                raise ValueError("--rows needs a table: hypersphere reproduce TABLE --rows A,B")
            return _list(folder, options)
        if options.show:
            _show(options, folder, rows)
            return 0
        tasks = runner.missing(options.table, folder, rows=rows, seeds=options.seeds, full=options.full)
        least = min((0.0 if runner.has_begun(task, runs) else task.minutes for task in tasks), default=0.0)
        if options.budget is not None and options.budget < least:
            raise ValueError(
                f"--budget {options.budget:g} is too small: one run of {options.table} takes about {least:.1f} minutes"
            )
        try:
            left = _run(tasks, folder, runs, options) if tasks else []
        except (KeyboardInterrupt, SystemExit):
            say("hypersphere reproduce: stopped; repeat the command to go on")
            raise
        _show(options, folder, rows)
    if left:
        cost = "" if all(task.minutes for task in left) else "; what one costs here is known once one has finished"
        unfinished = f"{len(left)} of {len(tasks)} runs are not finished"
        say(f"hypersphere reproduce: {unfinished}; repeat the command to go on{cost}")
    return 0


def _run(tasks: list[Any], folder: Path, runs: Path, options: argparse.Namespace) -> list[Any]:
    """Run the tasks; show a bar on a terminal, and a line for every run that begins or ends."""
    from ..papers.reproduce import runner

    kept = {key: getattr(options, key) for key in ("jobs", "budget", "device", "root")}
    with shown(options.table) as status:
        return runner.run(tasks, folder, runs, tell=say, status=status, **kept)


def _list(folder: Path, options: argparse.Namespace) -> int:
    """Print all tables, how much of each has been run, and what the rest costs here."""
    from ..papers.reproduce import compare

    listed = compare.overview(folder, options.full)
    if options.json:
        print(json.dumps(listed, indent=2))
        return 0
    cells = [
        [each["table"], _rows(each), f"{each['done']} of {each['runs']}", *map(_cost, minutes), each["title"]]
        if each["runs"]
        else [each["table"], "only --full", "-", "-", "-", each["title"]]
        for each in listed
        for minutes in [(each["cost"], each["minutes"])]
    ]
    form = "full" if options.full else "small"
    header = ["table", f"rows of {form} size", "runs done", "core-minutes", "left", "what"]
    print_table(TextTable(header, cells, left=6))
    return 0


def _rows(each: dict[str, Any]) -> str:
    return str(each["sized"]) if each["sized"] == len(each["rows"]) else f"{each['sized']} of {len(each['rows'])}"


def _cost(minutes: float | None) -> str:
    return "-" if minutes is None else f"{minutes:.0f}" if minutes >= 10 else f"{minutes:.1f}"


def _show(options: argparse.Namespace, folder: Path, rows: list[str]) -> None:
    from ..papers.reproduce import compare

    found = compare.compare(options.table, folder, options.full, rows)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{options.table}: {found['title']}; {found['what']}")
    if options.full and found["differs"]:
        print(f"differs from the paper: {found['differs']}")
    if not options.full and found["reduced"]:
        print(f"small form: {found['reduced']}")
    print_table(TextTable(*compare.cells(found, found["rows"])))
    for row in found["rows"]:
        if row["note"]:
            print(f"{row['row']}: {row['note']}")
    if found["summary"]:
        print(found["summary"])
