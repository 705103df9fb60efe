"""Check a run's files and checkpoints for damage."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from .._internal.checksummed_json import KEY, RUN_ID, checksum, parse
from .._internal.safe_files import check_folder, check_plain, is_folder, read_plain
from ..train.config import flags, from_tree
from ..train.config.files import LARGEST_FILE, read_tree
from ..train.config.values import known
from ..train.storage import layout
from ..train.storage.identity import check_id
from ..train.storage.summary import read_summary
from ._output import one_line, printable

DAMAGED = 1  # the exit code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="DIR", type=Path, help="run folder, its checkpoints folder, or one checkpoint"
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")


def run(options: argparse.Namespace) -> int:
    folder = options.folder
    try:
        found = {str(path): (problems, note) for path, problems, note in _parts(folder)}
    except (OSError, ValueError) as error:
        options.error(str(error))
    if not found:
        options.error(f"{folder} is not a run folder or a checkpoint")
    damaged = any(problems for problems, _ in found.values())
    if options.json:
        parts = [
            {"path": path, "ok": not problems, "checked": not note, "problems": problems}
            for path, (problems, note) in found.items()
        ]
        print(json.dumps({"path": str(folder), "ok": not damaged, "parts": parts}, indent=2))
    else:
        for path, (problems, note) in found.items():
            lines = [f"damaged  {path}: {_cause(path, problem)}" for problem in problems]
            print(printable("\n".join(lines) or f"ok       {path}{f' ({note})' if note else ''}"))
    return DAMAGED if damaged else 0


def _cause(path: str, problem: str) -> str:
    """Strip the path and the word `damaged` from a problem: they are printed before it."""
    return problem.removeprefix(path).lstrip("/: ").removeprefix("is damaged: ").removeprefix("damaged: ")


Part = tuple[Path, list[str], str]  # a file or checkpoint, what is wrong with it, why it could not be compared


def _parts(folder: Path) -> Iterator[Part]:
    """Yield every file and checkpoint with its problems."""
    from ..train.storage.reading import steps

    check_folder(folder)
    if any((folder / name).exists() for name in (layout.STATE, layout.TENSORS)):
        yield folder, _checkpoint_problems(folder), ""
        return
    saved = folder / layout.CHECKPOINTS if (folder / layout.CHECKPOINTS).is_dir() else folder
    for path in dict(sorted(steps(saved).items())).values():
        problems = _checkpoint_problems(path)
        if path.exists():  # a run that is at work removes old ones
            yield path, problems, ""
    if saved != folder:
        for path in sorted(saved.iterdir()):
            if layout.STEP.fullmatch(path.name) and not is_folder(path) and os.path.lexists(path):
                yield path, ["it must be a folder, not a file or a link"], ""
    if {each.name for each in folder.iterdir()} & {layout.CHECKPOINTS, layout.RESULT, layout.FINAL, layout.CONFIG}:
        yield from _Run(folder).parts()


def _checkpoint_problems(path: Path) -> list[str]:
    from ..train.storage.reading import read

    _, state, problems = read(path, keep=False)
    try:
        if not problems:
            check_id(Path(os.path.abspath(path)).parent.parent, path, state.get(RUN_ID))
    except ValueError as error:
        problems = [str(error)]
    return problems


class _Run:
    """The files of a run beside its checkpoints.

    Those of a finished run are compared with the checksums in result.json. Before that config.json has one of its own,
    metrics.jsonl up to the last checkpoint one in it, and a last line that is not whole is being written. Files that
    hypersphere wrote before it had these checksums are read and not compared.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tensors: list[str] = []  # files of them in final/, which model.json names
        self.is_finished, self.sums = False, None
        with suppress(ValueError, OSError):  # said of the file itself
            summary, self.sums = read_summary(folder)
            # A run that is made longer has a result of before.
            self.is_finished = summary["length"] == _length(folder / layout.CONFIG)

    def parts(self) -> Iterator[Part]:
        yield from self._part(layout.CONFIG, self._check_config)
        yield from self._part(layout.METRICS, self._check_metrics, needed=self.is_finished)
        yield from self._part(layout.RESULT, self._check_result, needed=False)
        yield from self._part(f"{layout.FINAL}/{layout.MODEL}", self._check_model, needed=self.is_finished)
        for name in self.tensors:  # none if model.json cannot be read: their checksums are in it
            yield from self._part(f"{layout.FINAL}/{layout.weights(name)}", self._check_tensors)
        if (self.folder / layout.LANDSCAPES).is_dir():
            for path in sorted((self.folder / layout.LANDSCAPES).iterdir()):
                if layout.LANDSCAPE.fullmatch(path.name):
                    yield from self._part(f"{layout.LANDSCAPES}/{path.name}", self._check_landscape)

        if (self.folder / layout.PREDICTIONS).is_dir():
            for path in sorted((self.folder / layout.PREDICTIONS).iterdir()):
                if layout.PREDICTIONS_FILE.fullmatch(path.name):
                    yield from self._part(f"{layout.PREDICTIONS}/{path.name}", self._check_predictions)

    def _part(self, name: str, check: Any, needed: bool = True) -> Iterator[Part]:
        path = self.folder / name
        if not needed and not os.path.lexists(path):
            return
        try:
            if path.parent != self.folder and os.path.lexists(path.parent) and not is_folder(path.parent):
                raise ValueError(f"{path.parent} must be a folder, not a link")
            check_plain(path)
            note = check(path) or ""
        except (ValueError, OSError) as error:
            yield path, [one_line(error)], ""
        else:
            yield path, [], note

    def _check_result(self, path: Path) -> str:
        return NO_CHECKSUM if read_summary(self.folder)[1] is None else ""

    def _compare(self, path: Path, data: bytes) -> None:
        """Compare with the checksum in result.json."""
        name = path.relative_to(self.folder).as_posix()
        if self.is_finished and self.sums is not None and self.sums.get(name) != checksum(data):
            raise ValueError("it does not match its checksum")

    def _check_config(self, path: Path) -> str:
        data = read_plain(path, LARGEST_FILE)
        tree = read_tree(path)
        _check_config(tree)
        self._compare(path, data)
        return "" if f'"{KEY}"'.encode() in data else NO_CHECKSUM

    def _check_metrics(self, path: Path) -> str:
        from ..train.storage import checkpoint
        from ..train.storage.metrics import has_mark, is_line
        from ..train.storage.reading import find

        data = read_plain(path)
        for number, line in enumerate(data.splitlines(keepends=True), 1):
            is_cut = not line.endswith(b"\n")
            if is_cut and not self.is_finished:
                continue  # the last one, which is being written
            try:
                whole = is_line(parse(line)) and not is_cut
            except ValueError:
                whole = False
            if not whole:
                raise ValueError(f"line {number} is not a JSON object of metrics")
            if number == 1:
                check_id(self.folder, path, parse(line).get(RUN_ID))
        if self.is_finished:
            self._compare(path, data)
            return NO_CHECKSUM if self.sums is None else ""
        newest, _ = find(self.folder / layout.CHECKPOINTS, marked=False)
        mark = None if newest is None else checkpoint.load(newest)[1].get("history")
        if mark is None:
            return NO_CHECKSUM
        if not has_mark(data, mark):
            raise ValueError(f"it does not start with the metrics saved by {newest}")
        return ""

    def _check_model(self, path: Path) -> str:
        from ..train.inference.run import read_spec
        from ..train.storage.weights import read_model

        described = read_model(path)
        read_spec(path, described.get("data"))
        self._compare(path, read_plain(path))
        self.tensors = [*described["checksums"]]
        return NO_CHECKSUM if described["format"] == 1 else ""

    def _check_landscape(self, path: Path) -> None:
        from ..train.storage import landscapes

        landscapes.read(path)

    def _check_predictions(self, path: Path) -> None:
        from ..train.storage import predictions

        predictions.read(path)

    def _check_tensors(self, path: Path) -> None:
        from ..train.storage.weights import read_tensors

        read_tensors(path)


NO_CHECKSUM = "not compared: no checksum"


def _length(config: Path) -> list[Any] | None:
    """Return steps and epochs of a config; None if it cannot be read, which is reported for the file itself."""
    try:
        tree = read_tree(config)
        return [tree.get("steps"), tree.get("epochs")] if isinstance(tree, dict) else None
    except (ValueError, OSError):
        return None


def _check_config(tree: Any) -> None:
    # Names of the user's own are known only once their file has run, and that is not done here.
    for flag in flags():
        group, _, name = flag.key.partition(".")
        settings = tree.get(group) if isinstance(tree, dict) else None
        kind = flag.field.metadata.get("names", "similarity")
        if kind != "similarity" and isinstance(settings, dict) and isinstance(settings.get(name), str):
            settings[name] = settings[name] if settings[name] in known(kind) else flag.field.default
    from_tree(tree)
