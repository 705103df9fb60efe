"""The results file of a table: one JSON file with an entry for every row and seed."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
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
from ..table import NEUTRAL, Row, Table

FORMAT = 2  # of the file; from 2 on files have checksums (see checksummed_json)

FULL, SMALL = "full", "small"


@dataclass(frozen=True)
class Entry:
    """The result of one run: a row, a seed, a form.

    Attributes:
        config: hash of what was run; a row that has changed since runs again.
        figures: what was measured, by name; none if the training broke off.
        facts: seconds (of the clock, and of the CPU if it was not resumed), steps, versions, data hash, machine;
            `failed`: why the training broke off.
    """

    row: str
    seed: int
    form: str
    config: str
    figures: Mapping[str, float]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int, str]:
        return self.row, self.seed, self.form

    @property
    def failed(self) -> str:
        """Why the training broke off; "" if it did not."""
        return str(self.facts.get("failed", ""))

    @property
    def seconds(self) -> float | None:
        """What it cost: seconds of the CPU if known, else of the clock."""
        return self.facts.get("cpu_seconds", self.facts.get("seconds"))


def fingerprint(table: Table, row: Row, form: str) -> str:
    """Hash what decides a row's result, without the seed and the place of files."""
    start = None if row.start is None else fingerprint(table, table.row(row.start), form)
    further: list[Any] = [] if table.target is None else [table.target]
    classifier = table.options.get("classifier", row.name)  # the row whose network gives the scores
    if classifier != row.name:
        further.append(fingerprint(table, table.row(classifier), form))
    return short_hash(_what_runs(row, form), start, dict(table.options), *further)


def training_fingerprint(table: Table, row: Row, form: str) -> str:
    """Hash what decides a row's trained weights, not how they are evaluated; it names the run folder."""
    start = None if row.start is None else training_fingerprint(table, table.row(row.start), form)
    return short_hash(_what_runs(row, form), start)


def run_folder(runs: Path, name: str, table: Table, row: Row, form: str, seed: int) -> Path:
    """Return the run folder of a row; one whose settings have changed since has another."""
    return runs / name / form / row.name / training_fingerprint(table, row, form)[:8] / f"seed{seed}"


def _what_runs(row: Row, form: str) -> Any:
    config = row.full if form == FULL else row.small
    return _function(row.compute) if row.compute is not None else None if config is None else settings(config)


def _function(compute: Any) -> Any:
    """Name a function and the arguments that are bound to it."""
    if isinstance(compute, partial):
        return [_function(compute.func), compute.args, compute.keywords]
    return compute.__qualname__


def settings(config: Config) -> dict[str, Any]:
    """Return what a config sets, without the seed and the place of files.

    Defaults are left out, so that a field that is added later does not invalidate results; of fields whose default has
    changed since, the one that the results were computed with.
    """
    found: dict[str, Any] = {}
    for each in fields(config):
        value = getattr(config, each.name)
        if isinstance(value, Group):
            found[each.name] = _changed(value)
        elif value != each.default:
            found[each.name] = value
    found["data"] = {key: value for key, value in found["data"].items() if key not in ("root", "workers")}
    return {key: value for key, value in found.items() if key not in ("seed", "out", "resume", "device")}


def _changed(group: Group) -> dict[str, Any]:
    """Return the fields of a group that are not at their defaults."""
    values = {
        each.name: (getattr(group, each.name), NEUTRAL.get(group.prefix + each.name, each.default))
        for each in fields(group)
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


def read(folder: Path, table: str) -> list[Entry]:
    """Read the results of a table; none if there is no file or it is of another version. ValueError if damaged."""
    file = path_of(folder, table)
    if not file.exists():
        return []
    if _version(file) != (__version__, FORMAT):
        return []
    tree, _ = checksummed_json.read(file, (FORMAT,))
    try:
        found = [Entry(**each) for each in tree["runs"]]
        return [_checked(each) for each in found]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file} is malformed: {type(error).__name__}: {error}") from None


def _checked(entry: Entry) -> Entry:
    """Return the entry; TypeError if something in it is of another type."""
    figures, facts = entry.figures, entry.facts
    texts = all(isinstance(each, str) for each in (entry.row, entry.form, entry.config))
    mappings = isinstance(figures, dict) and isinstance(facts, dict) and bool(figures or facts.get("failed"))
    if not texts or type(entry.seed) is not int or not mappings:
        raise TypeError(f"not a result: {str(vars(entry))[:100]}")
    if not all(isinstance(each, int | float) for each in figures.values()):
        raise TypeError(f"not a number in {str(figures)[:100]}")
    return entry


def read_all(folder: Path, *, skip_damaged: bool = False) -> dict[str, list[Entry]]:
    """Read the results of all tables. ValueError if a file is damaged, or a warning."""
    found: dict[str, list[Entry]] = {}
    for name in tables.TABLES:
        try:
            found[name] = read(folder, name)
        except ValueError as error:
            if not skip_damaged:
                raise
            warn(str(error))
    return found


def add(folder: Path, table: str, entry: Entry) -> None:
    """Add an entry to the file, in place of the one of the same row, seed and form; keep a file of another version."""
    folder.mkdir(parents=True, exist_ok=True)
    with safe_files.one_writer(folder):  # two commands may run rows of the same table
        _keep_other_version(path_of(folder, table))
        entries = {each.key: each for each in read(folder, table)} | {entry.key: entry}
        runs = [vars(each) | {"figures": dict(each.figures), "facts": dict(each.facts)} for each in entries.values()]
        tree = {"format": FORMAT, "table": table, "hypersphere": __version__, "runs": runs}
        safe_files.write_text(path_of(folder, table), checksummed_json.with_checksum(tree))


def _version(file: Path) -> tuple[Any, Any]:
    """Return the version of hypersphere that wrote a results file, and the file's format; ValueError if damaged."""
    data = safe_files.read_plain(file)
    form = None
    with suppress(ValueError):  # which `read` reports
        tree = checksummed_json.parse(data)
        form = tree.get("format") if isinstance(tree, dict) else None
    if type(form) is not int or (form > 1 and not checksummed_json.is_whole(data)):
        checksummed_json.read(file, (FORMAT,))
        raise ValueError(f"{file} is damaged: the checksum does not match")
    return tree.get("hypersphere"), form


def _keep_other_version(file: Path) -> None:
    """Rename a results file that another version of hypersphere has written."""
    if not file.exists() or (found := _version(file)) == (__version__, FORMAT):
        return
    version, form = f"{found[0]!s:.20}".replace("/", "_"), "" if found[1] == FORMAT else f".format-{found[1]}"
    name = f"{file.stem}.version-{version}{form}"
    names = (f"{name}{'' if number == 1 else f'-{number}'}{file.suffix}" for number in count(1))
    kept = next(path for path in map(file.with_name, names) if not path.exists())
    file.replace(kept)
    warn(f"{file} was written by version {version} of hypersphere: kept as {kept.name}, a new one begins")
