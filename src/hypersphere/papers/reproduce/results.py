"""The results file of a table: one JSON file with the result of every row and seed."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from ... import __version__
from ..._internal import checksummed_json, safe_files
from ..._internal.checks import warn
from ...train.config import Config
from ...train.config.groups import Group
from .. import tables
from ..table import NEUTRAL, PaperTable, TableRow

FORMAT = 2  # of the file

FULL, SMALL = "full", "small"
_IN_FILE = {"size": "form", "metrics": "figures"}  # field → its name in the file


@dataclass(frozen=True)
class RunResult:
    """The result of one run: a row, a seed, a size.

    Attributes:
        size: :data:`FULL` or :data:`SMALL`; "form" in the file.
        config: hash of what was run; a row that has changed since runs again.
        metrics: measured values by name, none if the training diverged; "figures" in the file.
        facts: seconds (of the clock, and of the CPU if it was not resumed), steps, versions, data hash, machine;
            `failed`: why the training diverged.
    """

    row: str
    seed: int
    size: str
    config: str
    metrics: Mapping[str, float]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int, str]:
        return self.row, self.seed, self.size

    @property
    def failed(self) -> str:
        """Why the training diverged; "" if it did not."""
        return str(self.facts.get("failed", ""))

    @property
    def seconds(self) -> float | None:
        """The cost: seconds of the CPU if known, else of the clock."""
        return self.facts.get("cpu_seconds", self.facts.get("seconds"))

    def to_tree(self) -> dict[str, Any]:
        """Return what the file holds."""
        values = {_IN_FILE.get(name, name): value for name, value in vars(self).items()}
        return values | {"figures": dict(self.metrics), "facts": dict(self.facts)}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> RunResult:
        """Read what :meth:`to_tree` returned. TypeError if something in it is of another type."""
        names = {stored: name for name, stored in _IN_FILE.items()}
        result = cls(**{names.get(key, key): value for key, value in tree.items()})
        texts = all(isinstance(text, str) for text in (result.row, result.size, result.config))
        mappings = isinstance(result.metrics, dict) and isinstance(result.facts, dict)
        if not texts or type(result.seed) is not int or not mappings or not (result.metrics or result.failed):
            raise TypeError(f"not a result: {str(tree)[:100]}")
        if not all(isinstance(value, int | float) for value in result.metrics.values()):
            raise TypeError(f"not a number in {str(result.metrics)[:100]}")
        return result


def fingerprint(table: PaperTable, row: TableRow, size: str) -> str:
    """Hash what decides a row's result, without the seed and the folders."""
    start = None if row.start is None else fingerprint(table, table.row(row.start), size)
    further: list[Any] = [] if table.target is None else [table.target]
    scoring = {} if table.scoring is None else asdict(table.scoring)
    if table.scoring is not None and table.scoring.classifier != row.name:
        further.append(fingerprint(table, table.row(table.scoring.classifier), size))
    return short_hash(_what_runs(row, size), start, scoring, *further)


def training_fingerprint(table: PaperTable, row: TableRow, size: str) -> str:
    """Hash what decides a row's trained weights, not how they are evaluated; it names the run folder."""
    start = None if row.start is None else training_fingerprint(table, table.row(row.start), size)
    return short_hash(_what_runs(row, size), start)


def run_folder(runs: Path, name: str, table: PaperTable, row: TableRow, size: str, seed: int) -> Path:
    """Return the run folder of a row; one whose settings have changed since has another."""
    return runs / name / size / row.name / training_fingerprint(table, row, size)[:8] / f"seed{seed}"


def _what_runs(row: TableRow, size: str) -> Any:
    config = row.full if size == FULL else row.small
    return _function(row.compute) if row.compute is not None else None if config is None else settings(config)


def _function(compute: Any) -> Any:
    """Name a function and the arguments that are bound to it."""
    if isinstance(compute, partial):
        return [_function(compute.func), compute.args, compute.keywords]
    return compute.__qualname__


def settings(config: Config) -> dict[str, Any]:
    """Return what a config sets, without the seed and the folders.

    Defaults are left out, so that a field that is added later does not invalidate results; of fields whose default has
    changed since, the one that the results were computed with.
    """
    changed: dict[str, Any] = {}
    for entry in fields(config):
        value = getattr(config, entry.name)
        if isinstance(value, Group):
            changed[entry.name] = _changed(value)
        elif value != entry.default:
            changed[entry.name] = value
    changed["data"] = {key: value for key, value in changed["data"].items() if key not in ("root", "workers")}
    return {key: value for key, value in changed.items() if key not in ("seed", "out", "resume", "device")}


def _changed(group: Group) -> dict[str, Any]:
    """Return the fields of a group that are not at their defaults."""
    values = {
        entry.name: (getattr(group, entry.name), NEUTRAL.get(group.prefix + entry.name, entry.default))
        for entry in fields(group)
    }
    return {name: value for name, (value, default) in values.items() if value != default}


def short_hash(*parts: Any) -> str:
    """Hash what JSON can say."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def machine() -> str:
    """Name the processor, for the results."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def path_of(folder: Path, table: str) -> Path:
    """Return the results file of a table."""
    return folder / f"{table}.json"


def read(folder: Path, table: str) -> list[RunResult]:
    """Read the results of a table; none if there is no file or it is of another version. ValueError if damaged."""
    file = path_of(folder, table)
    if not file.exists():
        return []
    tree = checksummed_json.read(file, FORMAT)
    if tree.get("hypersphere") != __version__:
        return []
    try:
        return [RunResult.from_tree(run) for run in tree["runs"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file} is malformed: {type(error).__name__}: {error}") from None


def read_all(folder: Path, *, skip_damaged: bool = False) -> dict[str, list[RunResult]]:
    """Read the results of all tables. ValueError if a file is damaged, or a warning."""
    stored: dict[str, list[RunResult]] = {}
    for name in tables.TABLES:
        try:
            stored[name] = read(folder, name)
        except ValueError as error:
            if not skip_damaged:
                raise
            warn(str(error))
    return stored


def add(folder: Path, table: str, result: RunResult) -> None:
    """Add a result to the file, in place of the one of the same row, seed and size; keep a file of another version."""
    folder.mkdir(parents=True, exist_ok=True)
    with safe_files.one_writer(folder):  # two commands may run rows of the same table
        _keep_other_version(path_of(folder, table))
        by_key = {other.key: other for other in read(folder, table)}
        old = by_key.get(result.key)
        if old is not None and old.config == result.config and "cpu_seconds" in old.facts.keys() - result.facts.keys():
            return  # of the process that trained it, which knows the cost
        by_key[result.key] = result
        runs = [other.to_tree() for other in by_key.values()]
        tree = {"format": FORMAT, "table": table, "hypersphere": __version__, "runs": runs}
        safe_files.write_text(path_of(folder, table), checksummed_json.with_checksum(tree))


def _keep_other_version(file: Path) -> None:
    """Rename a results file that another version of hypersphere has written."""
    if not file.exists() or (written_by := checksummed_json.read(file, FORMAT).get("hypersphere")) == __version__:
        return
    version = f"{written_by!s:.20}".replace("/", "_")
    names = (f"{file.stem}.version-{version}{'' if n == 1 else f'-{n}'}{file.suffix}" for n in count(1))
    free = next(path for path in map(file.with_name, names) if not path.exists())
    file.replace(free)
    warn(f"{file} was written by version {version} of hypersphere: kept as {free.name}, a new one begins")
