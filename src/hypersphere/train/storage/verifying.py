"""Check the files and checkpoints of a run for damage."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._internal.checksummed_json import KEY, RUN_ID, checksum, parse
from ..._internal.safe_files import check_folder, check_plain, is_folder, read_plain
from ..._internal.text import one_line
from ..config import flags, from_tree
from ..config.files import read_tree
from ..config.values import known
from ..inference.run import read_spec
from . import checkpoint, landscapes, layout, predictions
from .metrics import MetricsLine, has_mark
from .reading import find, read, steps
from .records import check_id, own_folder
from .summary import read_summary
from .weights import check_adapter, read_model, read_tensors

NO_CHECKSUM = "not compared: no checksum"


@dataclass(frozen=True)
class FileCheck:
    """A file or checkpoint, what is wrong with it, and why it could not be compared; "" if nothing is."""

    path: Path
    problem: str = ""
    note: str = ""


def verify_files(folder: Path) -> Iterator[FileCheck]:
    """Check every file of a run folder, of its checkpoints folder, or of one checkpoint."""
    check_folder(folder)
    if any((folder / name).exists() for name in (layout.STATE, layout.TENSORS)):
        yield FileCheck(folder, _checkpoint_problem(folder))
        return
    saved = folder / layout.CHECKPOINTS if (folder / layout.CHECKPOINTS).is_dir() else folder
    for path in dict(sorted(steps(saved).items())).values():
        problem = _checkpoint_problem(path)
        if path.exists():  # a run that is at work removes old ones
            yield FileCheck(path, problem)
    if saved != folder:
        for path in sorted(saved.iterdir()):
            if layout.STEP.fullmatch(path.name) and not is_folder(path) and os.path.lexists(path):
                yield FileCheck(path, "it must be a folder, not a file or a link")
    files = {path.name for path in folder.iterdir()}
    if files & {layout.CHECKPOINTS, layout.RESULT, layout.FINAL, layout.CONFIG}:
        yield from _RunFiles(folder).check()


def _checkpoint_problem(path: Path) -> str:
    try:
        check_id(Path(os.path.abspath(path)).parent.parent, path, read(path, copy=False)[1].get(RUN_ID))
    except ValueError as error:
        return str(error)
    return ""


class _RunFiles:
    """The files of a run beside its checkpoints.

    Those of a finished run are compared with the checksums in result.json. Before that config.json has one of its own,
    metrics.jsonl up to the last checkpoint one in it, and a last line that is not whole is being written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tensors: list[str] = []  # files of them in final/, which model.json names
        self.is_finished, self.sums = False, dict[str, str]()
        with suppress(ValueError, OSError):  # reported with the file itself
            summary = read_summary(folder)
            self.sums = summary.checksums
            # An extended run still has its old result.json.
            self.is_finished = list(summary.length) == _length(folder / layout.CONFIG)

    def check(self) -> Iterator[FileCheck]:
        yield from self._check(layout.CONFIG, self._check_config)
        yield from self._check(layout.METRICS, self._check_metrics, needed=self.is_finished)
        yield from self._check(layout.RESULT, lambda path: read_summary(path.parent), needed=False)
        yield from self._check(f"{layout.FINAL}/{layout.MODEL}", self._check_model, needed=self.is_finished)
        for name in self.tensors:  # none if model.json cannot be read: their checksums are in it
            yield from self._check(f"{layout.FINAL}/{layout.weights(name)}", read_tensors)
        yield from self._check(layout.ADAPTER, self._check_adapter, needed=layout.ADAPTER in self.sums)
        for folder, pattern, reader in (
            (layout.LANDSCAPES, layout.LANDSCAPE, landscapes.read),
            (layout.PREDICTIONS, layout.PREDICTIONS_FILE, predictions.read),
        ):
            if (self.folder / folder).is_dir():
                for path in sorted((self.folder / folder).iterdir()):
                    if pattern.fullmatch(path.name):
                        yield from self._check(f"{folder}/{path.name}", reader)

    def _check(self, name: str, check: Callable[[Path], Any], needed: bool = True) -> Iterator[FileCheck]:
        """Check one file; a `check` that returns text says why it could not compare."""
        path = self.folder / name
        if not needed and not os.path.lexists(path):
            return
        try:
            if path.parent != self.folder:
                own_folder(path.parent)
            check_plain(path)
            note = check(path)
        except (ValueError, OSError) as error:
            yield FileCheck(path, one_line(error))
        else:
            yield FileCheck(path, note=note if isinstance(note, str) else "")

    def _compare(self, path: Path, data: bytes) -> None:
        """Compare with the checksum in result.json."""
        name = path.relative_to(self.folder).as_posix()
        if self.is_finished and self.sums.get(name) != checksum(data):
            raise ValueError("it does not match its checksum")

    def _check_config(self, path: Path) -> str:
        data = read_plain(path)
        _check_config(read_tree(path))
        self._compare(path, data)
        return "" if f'"{KEY}"'.encode() in data else NO_CHECKSUM

    def _check_metrics(self, path: Path) -> str:
        data = read_plain(path)
        for number, line in enumerate(data.splitlines(keepends=True), 1):
            is_cut = not line.endswith(b"\n")
            if is_cut and not self.is_finished:
                continue  # the last one, which is being written
            try:
                if is_cut:
                    raise ValueError("it has no end")
                metrics = MetricsLine.from_dict(parse(line))
            except ValueError:
                raise ValueError(f"line {number} is not a JSON object of metrics") from None
            if number == 1:
                check_id(self.folder, path, metrics.run_id)
        if self.is_finished:
            self._compare(path, data)
            return ""
        newest, _ = find(self.folder / layout.CHECKPOINTS, marked=False)
        mark = None if newest is None else checkpoint.load(newest)[1].get("history")
        if mark is None:
            return NO_CHECKSUM
        if not has_mark(data, mark):
            raise ValueError(f"it does not start with the metrics saved by {newest}")
        return ""

    def _check_adapter(self, path: Path) -> str:
        known = self.sums.get(layout.ADAPTER) if self.is_finished else None
        check_adapter(path, known)
        return "" if known else NO_CHECKSUM

    def _check_model(self, path: Path) -> None:
        described = read_model(path)
        read_spec(path, described.data)
        self._compare(path, read_plain(path))
        self.tensors = [*described.checksums]


def _length(config: Path) -> list[Any] | None:
    """Return steps and epochs of a config; None if it cannot be read, which is reported for the file itself."""
    try:
        check_plain(config)
        tree = read_tree(config)
        return [tree.get("steps"), tree.get("epochs")] if isinstance(tree, dict) else None
    except (ValueError, OSError):
        return None


def _check_config(tree: Any) -> None:
    """Check a config, taking names that are not in our tables for the user's own: their file is not run here."""
    for flag in flags():
        group, _, name = flag.key.partition(".")
        settings = tree.get(group) if isinstance(tree, dict) else None
        kind = flag.field.metadata.get("names", "similarity")
        if kind != "similarity" and isinstance(settings, dict) and isinstance(settings.get(name), str):
            settings[name] = settings[name] if settings[name] in known(kind) else flag.field.default
    from_tree(tree)
