"""Run the rows of a table that have no result yet, several at a time, within a budget."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..recipes import papers
from ..recipes.table import Row, Table
from . import results
from .results import FULL, SMALL, Entry, fingerprint
from .statistics import mean_and_deviation

POLL = 0.2  # seconds between looks at the processes
GRACE = 60.0  # seconds that a process has to write its checkpoint


@dataclass(frozen=True)
class Task:
    """A run to be done."""

    table: str
    row: str
    seed: int
    form: str
    minutes: float  # estimate

    @property
    def name(self) -> str:
        return f"{self.table} {self.row} seed {self.seed}"


@dataclass(frozen=True)
class Running:
    """A task in its process; `errors` is the file of its stderr, not a pipe, since a full one would block."""

    task: Task
    process: subprocess.Popen[str]
    errors: IO[str]


@dataclass
class Status:
    """How far :func:`run` is, for a display."""

    total: int = 0
    done: int = 0
    running: tuple[Task, ...] = ()


class RunFailed(RuntimeError):
    """Raised when a row cannot be run, with its one-line reason."""


def form_of(full: bool) -> str:
    return FULL if full else SMALL


def can_run(row: Row, form: str) -> bool:
    """Return whether a row has this form."""
    return row.compute is not None or (row.full if form == FULL else row.small) is not None


def done(table: Table, entries: Sequence[Entry], form: str) -> dict[str, list[Entry]]:
    """Return the valid results by row: of this form, and of the row's present config."""
    valid: dict[str, list[Entry]] = {}
    for row in table.rows:
        now = fingerprint(row, form, table.options)
        these = [each for each in entries if each.row == row.name and each.form == form and each.config == now]
        valid[row.name] = sorted(these, key=lambda each: each.seed)
    return valid


def estimate(table: Table, row: Row, finished: dict[str, list[Entry]]) -> float:
    """Estimate the core-minutes of one run: as measured for the row, else for the table, else as the table states."""
    for entries in (finished[row.name], [each for those in finished.values() for each in those]):
        seconds = [each.facts["seconds"] for each in entries if "seconds" in each.facts]
        if seconds:
            return mean_and_deviation(seconds)[0] / 60
    return table.minutes


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
    table, form = papers.load(name), form_of(full)
    chosen = [table.row(each) for each in rows] or [row for row in table.rows if can_run(row, form)]
    for row in chosen:
        if not can_run(row, form):
            raise ValueError(f"row {row.name} of {name} has no {form} form{'' if full else '; use --full'}")
    if not chosen:
        raise ValueError(f"no row of {name} has a {form} form{'' if full else '; use --full'}")
    for row in [*chosen]:  # a second stage needs the first
        if row.start is not None and table.row(row.start) not in chosen:
            chosen.insert(0, table.row(row.start))
    finished = done(table, results.read(folder, name), form)
    there = {(each.row, each.seed) for entries in finished.values() for each in entries}
    tasks = []
    for seed in range(max((seeds or row.seeds) for row in chosen)):
        for row in chosen:
            wanted = seed < (seeds or row.seeds)
            if wanted and (row.name, seed) not in there:
                tasks.append(Task(name, row.name, seed, form, estimate(table, row, finished)))
    return tasks


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
    status: Status | None = None,
) -> list[Task]:
    """Run the tasks, each in its own process, and write every result as it comes.

    Args:
        budget: minutes; at their end running rows write a checkpoint and stop.
        tell: receives a line for every run that begins or ends.
        status: is kept up to date.

    Returns:
        The tasks that were not finished. They continue where they stopped when run again.

    Raises:
        RunFailed: if a row fails; the others are stopped.
    """
    waiting, running = [*tasks], list[Running]()
    deadline = None if budget is None else time.monotonic() + 60 * budget
    starts = {(name, row.name): row.start for name in {t.table for t in tasks} for row in papers.load(name).rows}
    left = [*tasks]
    status = status or Status()
    try:
        while waiting or running:
            for task in [*waiting]:
                first = starts[task.table, task.row]
                blocked = any((t.table, t.row, t.seed) == (task.table, first, task.seed) for t in left)
                if len(running) < jobs and not blocked:
                    waiting.remove(task)
                    running.append(_start(task, runs, jobs, device, root))
                    tell(f"{task.name}: begins, about {task.minutes:.1f} minutes")
            status.total, status.done = len(tasks), len(tasks) - len(left)
            status.running = tuple(each.task for each in running)
            time.sleep(POLL)
            for each in [one for one in running if one.process.poll() is not None]:
                running.remove(each)
                entry = _entry(each)
                results.add(folder, each.task.table, entry)
                left.remove(each.task)
                name, value = next(iter(entry.figures.items()))
                tell(f"{each.task.name}: {name} {value:.6g}, {entry.facts['seconds'] / 60:.1f} minutes")
            if deadline is not None and time.monotonic() > deadline:
                break
    finally:
        for each in running:
            with suppress(ProcessLookupError):
                each.process.send_signal(signal.SIGTERM)
        for each in running:
            with suppress(subprocess.TimeoutExpired):
                each.process.wait(GRACE)
            each.process.kill()
    return left


def _start(task: Task, runs: Path, jobs: int, device: str, root: str | None) -> Running:
    threads = 1 if jobs > 1 else max(1, int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))))
    request: dict[str, Any] = {**vars(task), "runs": str(runs), "threads": threads, "device": device, "root": root}
    errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with its process
    process = subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it died at once; its stderr says why
        process.stdin.write(json.dumps(request))
        process.stdin.close()
    return Running(task, process, errors)


def _entry(each: Running) -> Entry:
    """Read the result of a process that has ended."""
    assert each.process.stdout is not None
    with each.process.stdout, each.errors:
        out = each.process.stdout.read()
        each.errors.seek(0)
        lines = each.errors.read().strip().splitlines()
    if code := each.process.returncode:
        raise RunFailed(f"{each.task.name}: {lines[-1] if lines else f'exit code {code}'}")
    return Entry(**json.loads(out.strip().splitlines()[-1]))
