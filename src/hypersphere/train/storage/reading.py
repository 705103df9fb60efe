"""Read checkpoints."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..._internal import checks, checksummed_json, safe_files
from ..._internal.tensor_files import TensorFile, add_aliases, check_sums
from ..._internal.text import one_line
from .layout import CHECKPOINT_FORMAT, REPLACED, STATE, STEP, TENSORS
from .records import Count, to_record

State = dict[str, Any]
"""What of a checkpoint is no tensor: JSON, as flatten makes it."""
_TRIES = 10  # if the checkpoint is replaced or removed while it is read


def steps(folder: Path) -> dict[int, Path]:
    numbered: dict[int, Path] = {}
    for path in sorted(folder.iterdir(), reverse=True):  # 5.old before 5, which replaces it
        if (match := STEP.fullmatch(path.name)) and safe_files.is_folder(path):
            numbered[int(match[1])] = path
    return numbered


def find(folder: Path, marked: bool) -> tuple[Path | None, list[str]]:
    """Return the newest intact checkpoint (if `marked`, of those marked as best), and the errors of newer ones."""
    if not folder.exists():
        return None, []
    if not folder.is_dir():
        raise ValueError(f"folder must be a folder of checkpoints, got {str(folder)!r}")
    damaged = list[str]()
    for _ in range(_TRIES):
        numbered, damaged = steps(folder), []
        # A concurrent save renames: what is listed may be gone, and a listing may miss both names.
        moving = not numbered and any(folder.iterdir())
        for step in sorted(numbered, reverse=True):
            path = numbered[step]
            if not marked or is_best(path):
                try:
                    read(path, copy=False)
                    return path, damaged
                except ValueError as error:
                    damaged.append(str(error))
            moving = not path.is_dir()
            if moving:
                break
        if not moving:
            break
        time.sleep(0.005)
    return None, damaged


def warn_damaged(damaged: list[str]) -> None:
    if damaged:
        checks.warn(f"skipping damaged checkpoints: {'; '.join(dict.fromkeys(damaged))}")


def read(path: Path, *, copy: bool = True) -> tuple[dict[str, Tensor], State]:
    """Read a checkpoint; ValueError in one line if it is damaged.

    Args:
        copy: the caller gets what was checked, not what is on disk later.
    """
    for attempt in range(_TRIES):
        # A save moves the folder aside and puts the new one in its place: one of these, in this order, is there.
        places = (path, path.with_name(path.name + REPLACED), path)
        place = next((place for place in places if place.is_dir()), None)
        before = _identity(place or path)
        try:
            return _read_once(place or path, copy)
        except ValueError:
            is_same = place is None or (before is not None and _identity(path) == before)
            if is_same or attempt == _TRIES - 1:
                raise
    raise AssertionError


def read_state(path: Path) -> State:
    """Read what of a checkpoint is no tensor; ValueError in one line if it is damaged."""
    return _header(path / STATE).state


def _identity(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _read_once(path: Path, copy: bool) -> tuple[dict[str, Tensor], State]:
    if not path.is_dir():
        raise ValueError(f"{path} is not a checkpoint folder")
    header, file = _header(path / STATE), path / TENSORS
    safe_files.check_plain(file)
    tensors = TensorFile(file).read_all(copy=copy)
    check_sums(file, tensors, header.checksums)
    return add_aliases(tensors, header.aliases), header.state


@dataclass(frozen=True)
class CheckpointHeader:
    """state.json without format and checksum; `checksums` are of the tensors, `aliases` other names of some."""

    state: State
    best: bool
    checksums: dict[str, Any]
    aliases: dict[str, str]
    step: Count
    versions: dict[str, str]

    def __post_init__(self) -> None:
        if not self.aliases.keys().isdisjoint(self.checksums) or not set(self.aliases.values()) <= set(self.checksums):
            raise ValueError("aliases must be other names of tensors that have a checksum")


def _header(file: Path) -> CheckpointHeader:
    """Read and validate state.json; ValueError that names the file."""
    safe_files.check_plain(file)
    try:
        header = checksummed_json.parse(safe_files.read_plain(file))
        if not isinstance(header, dict) or type(header.get("format")) is not int:
            raise ValueError("it has no schema version")
    except (ValueError, RecursionError, OSError) as error:
        raise ValueError(f"{file} cannot be read: {one_line(error)}") from None
    if header["format"] != CHECKPOINT_FORMAT:
        reads = f"this version of hypersphere reads {CHECKPOINT_FORMAT}"
        raise ValueError(f"{file} has schema version {header['format']}; {reads}")
    body = {key: value for key, value in header.items() if key not in ("format", "checksum")}
    try:
        matches = header.get("checksum") == checksum(body)
    except (ValueError, RecursionError):  # 1e999 is read as infinity
        matches = False
    if not matches:
        raise ValueError(f"{file} is damaged: the checksum does not match")
    try:
        return to_record(CheckpointHeader, body)
    except ValueError as error:
        raise ValueError(f"{file} is malformed: {error}") from None


def is_best(path: Path) -> bool:
    try:
        return _header(path / STATE).best
    except ValueError:
        return False


def checksum(body: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(body, allow_nan=False).encode()):08x}"
