"""Run the rows of a table that have no result yet, several at a time, within a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ...train.processes import RunFailed as RunFailed
from ...train.processes import Status, run_all
from .. import tables
from ..table import Row, Table
from . import results
from .results import FULL, SMALL, Entry, fingerprint


@dataclass(frozen=True)
class Task:
    """A run to be done."""

    table: str
    row: str
    seed: int
    form: str
    minutes: float  # estimate; 0: unknown

    @property
    def name(self) -> str:
        return f"{self.table} {self.row} seed {self.seed}"


def form_of(full: bool) -> str:
    return FULL if full else SMALL


def can_run(row: Row, form: str) -> bool:
    """Return whether a row has this form."""
    return row.compute is not None or (row.full if form == FULL else row.small) is not None


def done(name: str, found: Mapping[str, Sequence[Entry]], form: str) -> dict[str, list[Entry]]:
    """Return the valid results of a table by row: of this form and of the row's present config.

    Args:
        found: the results of all tables: a run of another table with the same config counts too.
    """
    table = tables.load(name)
    valid: dict[str, list[Entry]] = {}
    for row in table.rows:
        now = fingerprint(table, row, form)
        by_seed: dict[int, Entry] = {}
        for file, entries in sorted(found.items(), key=lambda item: item[0] == name):  # its own count before others'
            for each in entries:
                same = (each.config, each.form) == (now, form) and (each.failed or table.figure in each.figures)
                if same and (row.compute is None or (file, each.row) == (name, row.name)):
                    by_seed[each.seed] = each
        valid[row.name] = [by_seed[seed] for seed in sorted(by_seed)]
    return valid


def estimate(table: Table, row: Row, finished: dict[str, list[Entry]]) -> float:
    """Estimate the core-minutes of one run: as measured for the row, else for the table, else as the table states.

    The clock of a resumed run counts at full size only, for which a table states nothing.
    """
    everything = [each for entries in finished.values() for each in entries]
    for entries in (finished[row.name], everything):
        if seconds := [each.facts["cpu_seconds"] for each in entries if "cpu_seconds" in each.facts]:
            return median(seconds) / 60
    clock = [each.seconds for each in everything if each.form == FULL and each.seconds is not None]
    return median(clock) / 60 if clock else table.minutes


def missing(
    name: str, folder: Path, *, rows: Sequence[str] = (), seeds: int | None = None, full: bool = False
) -> list[Task]:
    """Return the runs of a table without a result, all rows with one seed before any with the next.

    Args:
        rows: only these.
        seeds: how many of each row; None: as many as the row states.

    Raises:
        ValueError: for an unknown table or row, or one that has no such form.
    """
    table, form = tables.load(name), form_of(full)
    chosen = [table.row(each) for each in rows] or [row for row in table.rows if can_run(row, form)]
    for row in chosen:
        if not can_run(row, form):
            raise ValueError(f"row {row.name} of {name} has no {form} form{'' if full else '; use --full'}")
    if not chosen:
        raise ValueError(f"no row of {name} has a {form} form{'' if full else '; use --full'}")
    for row in [*chosen]:  # a second stage needs the first
        if row.start is not None and table.row(row.start) not in chosen:
            chosen.insert(0, table.row(row.start))
    finished = done(name, results.read_all(folder), form)
    there = {(row, each.seed) for row, entries in finished.items() for each in entries}
    known = not full or there  # a table states the minutes of its small form
    tasks = []
    for seed in range(max((seeds or row.seeds) for row in chosen)):
        for row in chosen:
            wanted = seed < (seeds or row.seeds)
            if wanted and (row.name, seed) not in there:
                minutes = estimate(table, row, finished) if known else 0.0
                tasks.append(Task(name, row.name, seed, form, minutes))
    return tasks


def has_begun(task: Task, runs: Path) -> bool:
    """Return whether a task has a run folder, in which it goes on."""
    table = tables.load(task.table)
    return results.run_folder(runs, task.table, table, table.row(task.row), task.form, task.seed).exists()


def run(
    tasks: Sequence[Task],
    folder: Path,
    runs: Path,
    *,
    jobs: int = 1,
    budget: float | None = None,
    device: str = "auto",
    root: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
    status: Status[Task] | None = None,
) -> list[Task]:
    """Run the tasks, each in its own process, and write every result as it comes.

    Args:
        budget: minutes; at their end running rows write a checkpoint and stop.
        tell: receives a line for every run that begins or ends.
        status: is kept up to date.

    Returns:
        The tasks that were not finished. They continue where they stopped when run again.

    Raises:
        RunFailed: if a row failed, after the others.
    """
    starts = {(name, row.name): row.start for name in {t.table for t in tasks} for row in tables.load(name).rows}

    def waits_for(task: Task, left: Sequence[Task]) -> bool:
        first = task.table, starts[task.table, task.row], task.seed
        return any((each.table, each.row, each.seed) == first for each in left)

    def began(task: Task) -> None:
        tell(f"{task.name}: begins" + (f", about {task.minutes:.1f} minutes" if task.minutes else ""))

    def ended(task: Task, answer: dict[str, Any]) -> None:
        entry = Entry(**answer)
        results.add(folder, task.table, entry)
        if entry.failed:
            tell(f"{task.name}: {entry.failed}")
            return
        name, value = next(iter(entry.figures.items()))
        shown = f"{value:,.0f}" if name == "parameters" else f"{value:.6g}"
        tell(f"{task.name}: {name} {shown}, {entry.facts['seconds'] / 60:.1f} minutes")

    return run_all(
        f"{__package__}.worker",
        tasks,
        lambda task: {**vars(task), "runs": str(runs), "device": device, "root": root},
        ended,
        jobs=jobs,
        deadline=None if budget is None else time.monotonic() + 60 * budget,
        began=began,
        waits_for=waits_for,
        status=status,
    )
