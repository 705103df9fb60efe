"""Read and check the files of `hypersphere landscape`, ``landscape/<direction>-<split>.json`` in a run folder.

===========================  ======================================================================================
direction, split, seed       normal or uniform; the split of the data; the seed of the directions and the samples
size, span                   of the grid: `size` points from -span to span along each axis
samples, step, rotated       evaluated samples; step of the weights; whether rotations were perturbed (OPT)
batch_size, device, weights  what else the bits depend on; `weights` is a checksum of the perturbed tensors
run_id                       of the run
alpha, beta                  the coordinates of the grid, `size` numbers each; (0, 0) is the run itself
loss, error                  rows of the grid: ``loss[i][j]`` is at (alpha[i], beta[j]), null where it is not finite;
                             error is a share in [0, 1]. A ``.part.json`` has fewer than `size` rows
===========================  ======================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..._internal import checksummed_json, safe_files
from .identity import check_id, read_id
from .layout import LANDSCAPE, LANDSCAPE_FORMAT, LANDSCAPES
from .summary import is_count, is_number

PART = ".part.json"  # the end of a name until all rows are there
LARGEST = 1001  # points along an axis


def find(run: Path) -> list[Path]:
    """Return the complete landscapes of a run folder, by name."""
    folder = run / LANDSCAPES
    if not safe_files.is_folder(folder):
        return []
    names = (each.name for each in folder.iterdir())
    return [folder / name for name in sorted(names) if LANDSCAPE.fullmatch(name) and not name.endswith(PART)]


def read(file: Path) -> dict[str, Any]:
    """Read a landscape and check every field; ValueError in one line."""
    tree, _ = checksummed_json.read(file, (LANDSCAPE_FORMAT,))
    check_id(file.parent.parent, file, tree.pop(checksummed_json.RUN_ID, None))
    if (why := _problem(tree, is_part=file.name.endswith(PART))) is not None:
        raise ValueError(f"{file} is malformed: {why}")
    return tree


def write(file: Path, tree: dict[str, Any]) -> None:
    """Write a landscape, atomically, with its checksum."""
    known = {"format": LANDSCAPE_FORMAT, checksummed_json.RUN_ID: read_id(file.parent.parent)}
    safe_files.write_text(file, checksummed_json.with_checksum(known | tree))


def _problem(tree: dict[str, Any], is_part: bool) -> str | None:
    size = tree.get("size")
    if type(size) is not int or not 3 <= size <= LARGEST:
        return f"size must be an integer from 3 to {LARGEST}"
    for key in ("direction", "split", "device", "weights"):
        if not isinstance(tree.get(key), str):
            return f"{key} must be text"
    for key in ("samples", "step", "batch_size"):
        if not is_count(tree.get(key)):
            return f"{key} must be an integer >= 0"
    for key in ("alpha", "beta"):
        if not _is_row(tree.get(key), size, is_number):
            return f"{key} must be {size} numbers"
    checks: dict[str, Callable[[Any], bool]] = {
        "loss": lambda value: value is None or is_number(value),
        "error": lambda value: is_number(value, 0, 1),
    }
    for key, check in checks.items():
        rows = tree.get(key)
        wanted = range(size + 1) if is_part else (size,)
        if not isinstance(rows, list) or len(rows) not in wanted or not all(_is_row(row, size, check) for row in rows):
            return f"{key} must be {size} rows of {size} numbers"
    return None if len(tree["loss"]) == len(tree["error"]) else "loss and error must have the same rows"


def _is_row(row: Any, size: int, check: Callable[[Any], bool]) -> bool:
    return isinstance(row, list) and len(row) == size and all(map(check, row))
