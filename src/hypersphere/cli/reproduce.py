"""Run a table of the papers and compare the results with the reported values."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._internal.tables import NOTHING, TextTable
from ._output import integer, print_table, say, user_errors
from ._runs import add_run_arguments, shown

if TYPE_CHECKING:
    from ..papers.reproduce.compare import TableStatus
    from ..papers.reproduce.runner import RowRun
    from ..train.config import Config

RESULTS, RUNS = "results", "runs/reproduce"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", nargs="?", help="table, such as opt.6; without it: list all tables")
    parser.add_argument(
        "--plan", action="store_true", help="the comparisons of RESULTS/plan.toml; --rows then names some of them"
    )
    parser.add_argument("--rows", metavar="A,B", help="only these rows")
    parser.add_argument("--seeds", metavar="K", type=integer(1, 1000), help="runs of each row (default: the row's own)")
    parser.add_argument("--full", action="store_true", help="the paper's own size instead of the reduced one")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="with --full: walk one step of every row without computing it; print memory, GPU hours and disk",
    )
    add_run_arguments(parser)
    parser.add_argument("--show", action="store_true", help="run nothing; print the results so far")
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

    folder, runs = (Path(os.path.expanduser(path)) for path in (options.results, options.runs))
    with user_errors(options, runner.RunFailed):
        rows = [*dict.fromkeys(row.strip() for row in (options.rows or "").split(",") if row.strip())]
        if options.rows is not None and not rows:
            raise ValueError(f"--rows must name rows, such as A,B; got {options.rows!r}")
        for name, path in (("results", folder), ("runs", runs)):
            existing = next(part for part in (path, *path.parents) if part.exists())
            if not existing.is_dir():
                raise ValueError(f"--{name} must be a folder, but {existing} is a file")
        if options.dry_run:
            return _dry_run(options, rows)
        if options.plan:
            return _run_plan(options, folder, runs, rows)
        if options.table is None:
            if rows:
                raise ValueError("--rows needs a table: hypersphere reproduce TABLE --rows A,B")
            return _list(folder, options)
        if options.show:
            _show(options, folder, rows)
            return 0
        tasks = runner.missing(options.table, folder, rows=rows, seeds=options.seeds, full=options.full)
        left = _run(tasks, folder, runs, options)
        _show(options, folder, rows)
    if left:
        cost = "" if all(task.minutes for task in left) else "; no time estimate until the first run has finished"
        say(f"{_unfinished(left, tasks)}{cost}")
    return 0


def _run_plan(options: argparse.Namespace, folder: Path, runs: Path, names: list[str]) -> int:
    """Run the comparisons of the plan that are not finished; print the plan and what is left."""
    from ..papers.reproduce import planned

    for flag in ("table", "seeds", "full"):
        if getattr(options, flag):
            name = "TABLE" if flag == "table" else f"--{flag}"
            raise ValueError(f"--plan does not go with {name}: the plan says what is run")
    plan = planned.read(folder)
    tasks = [] if options.show else planned.missing(plan, folder, names)
    left = _run(tasks, folder, runs, options)
    status = planned.status(plan, folder, names)
    if options.json:
        print(json.dumps(status.to_dict(), indent=2))
    else:
        for table in status.tables():
            print_table(table)
        print("\n".join(status.notes()))
    if left:
        say(_unfinished(left, tasks))
    return 0


def _dry_run(options: argparse.Namespace, rows: list[str]) -> int:
    """Walk one step of every full-size row and print what a run of it needs; 1 if one cannot be built."""
    from ..papers import full_size, tables

    if not options.full:
        raise ValueError("--dry-run needs --full: rows of reduced size fit every machine")
    if rows and options.table is None:
        raise ValueError("--rows needs a table: hypersphere reproduce TABLE --rows A,B")
    names = [options.table] if options.table is not None else [*tables.TABLES]
    chosen = [(name, row) for name in names for row in tables.load(name).rows if not rows or row.name in rows]
    for name in rows:
        tables.load(options.table).row(name)
    counted: dict[Config, full_size.Needs | str] = {}  # rows of several tables are often the same training
    lines: list[dict[str, Any]] = []
    for name, row in chosen:
        if row.full is None:
            continue
        if row.full not in counted:
            try:
                counted[row.full] = full_size.needs(row.full)
            except (ValueError, RuntimeError, ArithmeticError) as error:
                counted[row.full] = " ".join(str(error).split())[:200]
        found = counted[row.full]
        lines.append({"table": name, "row": row.name, **({"failed": found} if isinstance(found, str) else vars(found))})
        if not options.json:
            say(f"{name} {row.name}: {found if isinstance(found, str) else 'counted'}")
    if options.json:
        print(json.dumps(lines, indent=2))
    else:
        header = ["table", "row", "batch", "GB", "steps", f"hours on one {full_size.GPU}", "GB of disk"]
        cells = [_needs_cells(line) for line in lines if "failed" not in line]
        print_table(TextTable(header, cells, left=2))
        print(full_size.HOW)
    return int(any("failed" in line for line in lines))


def _needs_cells(line: dict[str, Any]) -> list[str]:
    sizes = [f"{line['batch']:,}", f"{line['memory'] / 1e9:.2f}", f"{line['steps']:,}"]
    return [line["table"], line["row"], *sizes, f"{line['hours']:.2f}", f"{line['disk'] / 1e9:.2f}"]


def _say_needs(name: str, tasks: list[RowRun]) -> None:
    """Say what these full-size runs need, where the shape of their data is known."""
    from ..papers import full_size, tables

    configs = [config for task in tasks if (config := tables.load(name).row(task.row).full) is not None]
    if not configs or any(config.data.name not in full_size.SHAPES for config in configs):
        return
    needs = {config: full_size.needs(config) for config in dict.fromkeys(configs)}
    most = max(needs.values(), key=lambda one: one.memory)
    hours, disk = (sum(getattr(needs[config], key) for config in configs) for key in ("hours", "disk"))
    say(
        f"{name} at full size: {len(configs)} runs, at most {most.memory / 1e9:.1f} GB of memory, about {hours:.1f} "
        f"hours on one {full_size.GPU} and {disk / 1e9:.1f} GB of disk. {full_size.HOW}"
    )


def _unfinished(left: list[RowRun], tasks: list[RowRun]) -> str:
    return f"hypersphere reproduce: {len(left)} of {len(tasks)} runs are not finished; repeat the command to go on"


def _run(tasks: list[RowRun], folder: Path, runs: Path, options: argparse.Namespace) -> list[RowRun]:
    """Run the tasks; show a bar on a terminal, and a line for every run that begins or ends. Return what is left."""
    from ..papers.reproduce import runner

    if not tasks:
        return []
    what = options.table or "the plan"
    least = min(0.0 if runner.has_started(task, runs) else task.minutes for task in tasks)
    if options.budget is not None and options.budget < least:
        raise ValueError(f"--budget {options.budget:g} is too small: one run of {what} takes about {least:.1f} minutes")
    runner.check_data(tasks, options.root)
    if options.full:
        _say_needs(options.table, tasks)
    wanted = {key: getattr(options, key) for key in ("jobs", "budget", "device", "root")}
    try:
        with shown(what) as status:
            return runner.run(tasks, folder, runs, tell=say, status=status, **wanted)
    except (KeyboardInterrupt, SystemExit):
        say("hypersphere reproduce: stopped; repeat the command to go on")
        raise


def _list(folder: Path, options: argparse.Namespace) -> int:
    """Print all tables, how much of each has been run, and the cost of the rest."""
    from ..papers.reproduce import compare

    listed = compare.overview(folder, options.full)
    if options.json:
        print(json.dumps([vars(status) for status in listed], indent=2))
        return 0
    header = ["table", "rows of full size" if options.full else "rows of reduced size", "runs done", "core-minutes"]
    print_table(TextTable([*header, "left", "what"], [_cells(status) for status in listed], left=6))
    return 0


def _cells(status: TableStatus) -> list[str]:
    if not status.runs:
        return [status.table, "only --full", NOTHING, NOTHING, NOTHING, status.title]
    rows = f"{status.sized}" if status.sized == len(status.rows) else f"{status.sized} of {len(status.rows)}"
    runs = f"{status.done} of {status.runs}"
    return [status.table, rows, runs, _minutes(status.cost), _minutes(status.minutes), status.title]


def _minutes(minutes: float | None) -> str:
    return NOTHING if minutes is None else f"{minutes:.0f}" if minutes >= 10 else f"{minutes:.1f}"


def _show(options: argparse.Namespace, folder: Path, rows: list[str]) -> None:
    from ..papers.reproduce import compare

    comparison = compare.compare(options.table, folder, options.full, rows)
    if options.json:
        print(json.dumps(comparison.to_dict(), indent=2))
        return
    print(f"{options.table}: {comparison.title}; {comparison.what}")
    if options.full and comparison.differs:
        print(f"differs from the paper: {comparison.differs}")
    if not options.full and comparison.reduced:
        print(f"reduced size: {comparison.reduced}")
    for table in comparison.tables():
        print_table(table)
    for note in comparison.notes():
        print(note)
