"""Find the official files and read them without trusting the sizes in their headers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Source:
    """A dataset as its authors publish it.

    Attributes:
        name: its name in :func:`hypersphere.data.load`.
        folders: where its files are below root, the usual one first; root may also be that folder itself.
        files: a description of the expected files.
        origin: where to get it.
    """

    name: str
    folders: tuple[str, ...]
    files: str
    origin: str

    def find(self, root: Path | None, *names: str) -> Path:
        """Return the folder that holds one of these files."""
        return self.find_where(root, lambda folder: any((folder / name).is_file() for name in names))

    def find_where(self, root: Path | None, holds_it: Callable[[Path], bool]) -> Path:
        """Return the first of the folders, and root itself, that `holds_it` accepts."""
        if root is None:
            raise ValueError(
                f"{self.name} needs root (--data.root), or the environment variable HYPERSPHERE_DATA: the folder that "
                f"holds {self.folders[0]} with {self.files}, from {self.origin}"
            )
        for folder in [root / name for name in self.folders] + [root]:
            if holds_it(folder):
                return folder
        raise ValueError(
            f"{self.name} not found in {root}: expected {self.files} in {root / self.folders[0]}; "
            f"download them from {self.origin}"
        )

    def file(self, folder: Path, *names: str) -> Path:
        """Return the first of `names` that is a file in `folder`."""
        for name in names:
            if (folder / name).is_file():
                return folder / name
        raise ValueError(f"{self.name}: {folder / names[0]} is missing; download it from {self.origin}")


def check_size(path: Path, expected: int) -> None:
    """Require that the file has exactly this number of bytes."""
    size = path.stat().st_size
    if size != expected:
        wrong = "empty" if not size else "truncated" if size < expected else "too long"
        raise ValueError(f"{path} is {wrong}: expected {expected} bytes, got {size}")


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Read a text file."""
    if not path.is_file():
        raise ValueError(f"{path} must be a file")
    try:
        return path.read_bytes().decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be {encoding} text: {error.reason} at byte {error.start}") from None


def parse_integers(path: Path, words: Sequence[str], *, low: int = 0, high: int = 2**31 - 1) -> list[int]:
    """Parse `words` of a text file as integers in [low, high]."""
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) <= 10 and low <= int(word) <= high):
            raise ValueError(f"{path} must hold integers from {low} to {high}, got {word[:40]!r}")
    return [int(word) for word in words]


def check_labels(path: Path, labels: npt.NDArray[Any], classes: int) -> None:
    """Require labels in [0, classes)."""
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        at = int(np.flatnonzero((labels < 0) | (labels >= classes))[0])
        raise ValueError(f"{path}: labels must be 0 to {classes - 1}, got {int(labels[at])} at record {at}")


def list_folders(path: Path) -> list[str]:
    """Return the sorted names of the folders in a folder; empty if it does not exist."""
    return [entry.name for entry in list_entries(path) if entry.is_dir()] if path.is_dir() else []


def list_entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, sorted by name, without hidden files."""
    with os.scandir(folder) as entries:
        return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
