"""Read checkpoints and report validation errors, one line each."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..._internal import checks, checksummed_json, safe_files
from ..._internal.tensor_files import TensorFile, add_aliases, problems_of
from ..._internal.text import one_line
from .layout import CHECKPOINT_FORMAT, REPLACED, STATE, STEP, TENSORS
from .records import Count, to_record

State = dict[str, Any]
"""What of a checkpoint is no tensor: JSON, as flatten makes it."""


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
    numbered, damaged = steps(folder), list[str]()
    for step in sorted(numbered, reverse=True):
        path = numbered[step]
        if marked and not is_best(path):
            continue
        problems = read(path, keep=False)[2]
        if not problems:
            return path, damaged
        if path.is_dir():  # else a training has removed it just now
            damaged += problems[:1]
    return None, damaged


def warn_damaged(damaged: list[str]) -> None:
    if damaged:
        checks.warn(f"skipping damaged checkpoints: {'; '.join(dict.fromkeys(damaged))}")


def read(path: Path, keep: bool) -> tuple[dict[str, Tensor], State, list[str]]:
    """Return the tensors (if `keep`) and the state of a checkpoint, or its errors."""
    aside = path.with_name(path.name + REPLACED)  # while a save replaces it
    path = aside if aside.is_dir() and not path.is_dir() else path
    if not path.is_dir():
        return {}, {}, [f"{path} is not a checkpoint folder"]
    try:
        header = _header(path / STATE)
        file = path / TENSORS
        safe_files.check_plain(file)
        # A copy: the caller must get what was checked, not what is on disk later.
        tensors = TensorFile(file).read_all(copy=keep)
        problems = problems_of(file, tensors, header.checksums)
    except ValueError as error:
        problems = [str(error)]
    if problems:
        return {}, {}, problems
    return add_aliases(tensors, header.aliases) if keep else {}, header.state, []


@dataclass(frozen=True)
class CheckpointHeader:
    """state.json: beside the state, checksums of the tensors, and other names of some of them."""

    step: Count
    best: bool
    state: dict[str, Any]
    checksums: dict[str, str]
    aliases: dict[str, str]
    versions: dict[str, str]

    def __post_init__(self) -> None:
        if not set(self.aliases.values()) <= set(self.checksums) or set(self.aliases) & set(self.checksums):
            raise ValueError("aliases must be new names of its tensors")


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
