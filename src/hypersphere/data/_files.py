"""Where the official files stand, and reading them without trusting what they say of their own size."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Source:
    """A data set as its authors publish it.

    Attributes:
        name: what :func:`hypersphere.data.load` calls it.
        folders: where its files stand below root, the usual one first; root may also be that folder itself.
        files: what is expected there, in words.
        origin: where a user gets it.
    """

    name: str
    folders: tuple[str, ...]
    files: str
    origin: str

    def find(self, root: Path | None, *marks: str) -> Path:
        """The folder that holds one of the files `marks`."""
        if root is None:
            raise ValueError(
                f"{self.name} needs root, or the environment variable HYPERSPHERE_DATA: the folder that holds "
                f"{self.folders[0]} with {self.files}, from {self.origin}"
            )
        for folder in [root / name for name in self.folders] + [root]:
            if any((folder / mark).is_file() for mark in marks):
                return folder
        raise ValueError(
            f"{self.name} is not below {root}: expected {self.files} in {root / self.folders[0]}; "
            f"they come from {self.origin} and are not fetched"
        )

    def file(self, folder: Path, *names: str) -> Path:
        """The first of `names` that is a file of `folder`."""
        for name in names:
            if (folder / name).is_file():
                return folder / name
        raise ValueError(f"{self.name}: {folder / names[0]} is missing; it comes from {self.origin}")


def size_of(path: Path) -> int:
    if not path.is_file():
        raise ValueError(f"{path} must be a file")
    return path.stat().st_size


def check_size(path: Path, expected: int) -> None:
    """`path` has the bytes its format gives it, no more and no fewer."""
    size = size_of(path)
    if size != expected:
        wrong = "empty" if not size else "truncated" if size < expected else "too long"
        raise ValueError(f"{path} is {wrong}: expected {expected} bytes, got {size}")


def fill(file: Any, array: npt.NDArray[Any], path: Path) -> None:
    """Reads the bytes of `array` from `file`."""
    view = array.reshape(-1).view(np.uint8).data
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            raise ValueError(f"{path} is truncated: expected {len(view) - done} bytes more")
        done += count


def records(path: Path, offset: int, count: int, length: int) -> Iterator[tuple[int, Bytes]]:
    """`count` records of `length` bytes: (number of the first, records (n, length)); the next ones overwrite them.

    A few hundred records at a time stay in the processor's cache, so that copying a part of each costs little more
    than reading.
    """
    step = max(1, (1 << 20) // length)
    buffer = np.empty((step, length), np.uint8)
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        for start in range(0, count, step):
            part = buffer[: min(step, count - start)]
            fill(file, part, path)
            yield start, part


def read_text(path: Path, limit: int = 1 << 26, encoding: str = "utf-8") -> str:
    """The text of a file of at most `limit` bytes."""
    if size_of(path) > limit:
        raise ValueError(f"{path} is too long: expected at most {limit} bytes, got {size_of(path)}")
    try:
        return path.read_bytes().decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be {encoding} text: {error.reason} at byte {error.start}") from None


def integers(path: Path, words: Sequence[str], *, low: int = 0, high: int = 2**31 - 1) -> list[int]:
    """`words` of a text file as whole numbers within [low, high]."""
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) <= 10 and low <= int(word) <= high):
            raise ValueError(f"{path} must hold whole numbers from {low} to {high}, got {word[:40]!r}")
    return [int(word) for word in words]


def check_labels(path: Path, labels: npt.NDArray[Any], classes: int, start: int = 0) -> None:
    """Labels of the records from number `start` on are within the classes."""
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        at = int(np.flatnonzero((labels < 0) | (labels >= classes))[0])
        raise ValueError(f"{path}: labels must be 0 to {classes - 1}, got {int(labels[at])} at record {start + at}")


def extra(module: str, package: str, what: str) -> Any:
    """A module of a package that only `what` needs."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs {package}: pip install 'hypersphere[data]' ({error})") from None


def folders(path: Path) -> list[str]:
    """The names of the folders in a folder, sorted; none where there is no such folder or it cannot be followed."""
    return [entry.name for entry in entries(path) if _is(entry.is_dir)] if path.is_dir() else []


def is_file(entry: os.DirEntry[str]) -> bool:
    """Whether it is a file that can be read: no folder, no pipe, no link to nowhere."""
    return _is(entry.is_file)


def _is(kind: Callable[[], bool]) -> bool:
    try:
        return kind()
    except OSError:  # a link that goes in circles
        return False


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """What stands in a folder, sorted by name, hidden files left out."""
    with os.scandir(folder) as found:
        return sorted((entry for entry in found if not entry.name.startswith(".")), key=lambda entry: entry.name)
