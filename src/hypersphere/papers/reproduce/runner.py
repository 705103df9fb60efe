"""Run the rows of a table that have no result yet, several at a time, within a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ...train import splits
from ...train.config import Config, derive
from ...train.processes import RunFailed as RunFailed
from ...train.processes import Status, run_all
from ...train.storage import folder as run_folders
from .. import tables
from ..table import PaperTable, TableRow
from . import results
from .results import FULL, SMALL, RunResult, fingerprint


@dataclass(frozen=True)
class RowRun:
    """A row and a seed to be run."""

    table: str
    row: str
    seed: int
    size: str
    minutes: float  # estimate; 0: unknown

    @property
    def name(self) -> str:
        return f"{self.table} {self.row} seed {self.seed}"


def size_of(full: bool) -> str:
    return FULL if full else SMALL


def can_run(row: TableRow, size: str) -> bool:
    """Return whether a row exists at this size."""
    return row.compute is not None or (row.full if size == FULL else row.small) is not None


def done(name: str, stored: Mapping[str, Sequence[RunResult]], size: str) -> dict[str, list[RunResult]]:
    """Return the valid results of a table by row: of this size and of the row's present config.

    Args:
        stored: the results of all tables: a run of another table with the same config counts too.
    """
    table = tables.load(name)
    valid: dict[str, list[RunResult]] = {}
    for row in table.rows:
        config = fingerprint(table, row, size)
        by_seed: dict[int, RunResult] = {}
        for file, runs in sorted(stored.items(), key=lambda item: item[0] == name):  # its own count before others'
            for run in runs:
                same = (run.config, run.size) == (config, size) and (run.failed or table.metric in run.metrics)
                if same and (row.compute is None or (file, run.row) == (name, row.name)):
                    by_seed[run.seed] = run
        valid[row.name] = [by_seed[seed] for seed in sorted(by_seed)]
    return valid


def estimate(table: PaperTable, row: TableRow, finished: dict[str, list[RunResult]]) -> float:
    """Estimate the core-minutes of one run: as measured for the row, else for the table, else as the table states.

    The clock of a resumed run counts at full size only, for which a table states nothing.
    """
    of_table = [run for runs in finished.values() for run in runs]
    for runs in (finished[row.name], of_table):
        if seconds := [run.facts["cpu_seconds"] for run in runs if "cpu_seconds" in run.facts]:
            return median(seconds) / 60
    clock = [run.seconds for run in of_table if run.size == FULL and run.seconds is not None]
    return median(clock) / 60 if clock else table.minutes


def missing(
    name: str, folder: Path, *, rows: Sequence[str] = (), seeds: int | None = None, full: bool = False
) -> list[RowRun]:
    """Return the runs of a table without a result, all rows with one seed before any with the next.

    Args:
        rows: only these.
        seeds: how many of each row; None: as many as the row states.

    Raises:
        ValueError: for an unknown table or row, or one that does not exist at this size.
    """
    table, size = tables.load(name), size_of(full)
    hint = "the paper's size" if full else "reduced size; use --full"
    chosen = [table.row(wanted) for wanted in rows] or [row for row in table.rows if can_run(row, size)]
    for row in chosen:
        if not can_run(row, size):
            raise ValueError(f"row {row.name} of {name} does not exist at {hint}")
    if not chosen:
        raise ValueError(f"no row of {name} exists at {hint}")
    for row in [*chosen]:  # a second stage needs the first
        if row.start is not None and table.row(row.start) not in chosen:
            chosen.insert(0, table.row(row.start))
    finished = done(name, results.read_all(folder), size)
    existing = {(row, run.seed) for row, runs in finished.items() for run in runs}
    known = not full or existing  # a table states the minutes at reduced size
    tasks = []
    for seed in range(max((seeds or row.seeds) for row in chosen)):
        for row in chosen:
            wanted = seed < (seeds or row.seeds)
            if wanted and (row.name, seed) not in existing:
                minutes = estimate(table, row, finished) if known else 0.0
                tasks.append(RowRun(name, row.name, seed, size, minutes))
    return tasks


def check_data(tasks: Sequence[RowRun], root: str | None) -> None:
    """Raise the ValueError of the first task's data if no task has its data."""
    error: ValueError | None = None
    for name, row_name, size in dict.fromkeys((task.table, task.row, task.size) for task in tasks):
        row = tables.load(name).row(row_name)
        config = row.full if size == FULL else row.small
        if row.compute is not None or config is None:
            return
        try:
            splits.load(data_from(config, root).data, config.seed)
            return
        except ValueError as problem:
            error = error or problem
    if error is not None:
        raise error


def data_from(config: Config, root: str | None) -> Config:
    """Return the config with its data in the folder `root`; None: as it is."""
    return config if root is None or config.data.name == "digits" else derive(config, {"data.root": root})


def has_started(task: RowRun, runs: Path) -> bool:
    """Return whether a task has a run folder, in which it continues."""
    return _folder(task, runs).exists()


def _folder(task: RowRun, runs: Path) -> Path:
    table = tables.load(task.table)
    return results.run_folder(runs, task.table, table, table.row(task.row), task.size, task.seed)


def _is_in_use(task: RowRun, runs: Path) -> bool:
    """Return whether another process trains this row; others come first."""
    try:
        run_folders.check_free(_folder(task, runs))
    except run_folders.LockedError:
        return True
    return False


def run(
    tasks: Sequence[RowRun],
    folder: Path,
    runs: Path,
    *,
    jobs: int = 1,
    budget: float | None = None,
    device: str = "auto",
    root: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
    status: Status[RowRun] | None = None,
) -> list[RowRun]:
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

    def waits_for(task: RowRun, left: Sequence[RowRun]) -> bool:
        first = task.table, starts[task.table, task.row], task.seed
        return any((other.table, other.row, other.seed) == first for other in left) or _is_in_use(task, runs)

    def began(task: RowRun) -> None:
        tell(f"{task.name}: begins" + (f", about {task.minutes:.1f} minutes" if task.minutes else ""))

    def ended(task: RowRun, answer: Mapping[str, Any]) -> None:
        result = RunResult.from_tree(answer)
        results.add(folder, task.table, result)
        if result.failed:
            tell(f"{task.name}: {result.failed}")
            return
        name, value = next(iter(result.metrics.items()))
        shown = f"{value:,.0f}" if name == "parameters" else f"{value:.6g}"
        tell(f"{task.name}: {name} {shown}, {result.facts['seconds'] / 60:.1f} minutes")

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
