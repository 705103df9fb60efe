"""Tensors in a file: names, types and shapes at once, values one tensor at a time.

A file of safetensors is read by position, without mapping it: memory holds one tensor, and a file that shrinks while it
is read gives an error, not a signal.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

LARGEST_HEADER = 32 << 20  # bytes; 100,000 tensors take about half of it
MOST_DIMENSIONS = 16
TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_SIZES = {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_SIZES |= {name: dtype.itemsize for name, dtype in TYPES.items()}


@dataclass(frozen=True)
class Entry:
    """A tensor of a file."""

    dtype: str
    """As safetensors names it; a floating point type of :data:`TYPES`, or another."""
    shape: tuple[int, ...]

    @property
    def is_floating(self) -> bool:
        return self.dtype in TYPES


class Tensors(Protocol):
    """The tensors of a file, or of several."""

    @property
    def entries(self) -> Mapping[str, Entry]: ...

    def read(self, name: str) -> Tensor: ...


def open_regular(path: Path) -> int:
    """Open a regular file, or a link to one, and return its descriptor; ValueError for a folder, pipe or device."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path} is not a file")
    return descriptor


class SafetensorsFile:
    """The tensors of a safetensors file. Its header is checked: no tensor overlaps another or leaves the file."""

    def __init__(self, descriptor: int, path: Path) -> None:
        """Take over the descriptor."""
        self.descriptor, self.path = descriptor, path
        self.size = os.fstat(descriptor).st_size
        self.entries: dict[str, Entry] = {}
        self.metadata: dict[str, Any] = {}
        self._spans: dict[str, tuple[int, int]] = {}
        self._read_header()

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):
            os.close(self.descriptor)

    def add_names(self, names: Mapping[str, str]) -> None:
        """Add names of tensors that are tied to others."""
        for name, other in names.items():
            self.entries[name], self._spans[name] = self.entries[other], self._spans[other]

    def read(self, name: str) -> Tensor:
        """Read a tensor of floating point numbers or int64; as a vector if it has more than 16 dimensions."""
        entry, (offset, length) = self.entries[name], self._spans[name]
        raw = torch.empty(length, dtype=torch.uint8)
        view, done = memoryview(raw.numpy().data), 0
        while done < length:
            count = os.preadv(self.descriptor, [view[done : done + (1 << 30)]], offset + done)
            if not count:
                self._refuse("it was shortened while it was read")
            done += count
        value = raw.view(torch.int64 if entry.dtype == "I64" else TYPES[entry.dtype])
        return value.view(entry.shape) if len(entry.shape) <= MOST_DIMENSIONS else value

    def _read_header(self) -> None:
        if not self.size:
            self._refuse("it is empty")
        length = int.from_bytes(os.pread(self.descriptor, 8, 0), "little")
        if self.size < 10 or length > self.size - 8:
            self._refuse(f"its header has {length} bytes, but the file {self.size}")
        if length > LARGEST_HEADER:
            self._refuse(f"its header has {length} bytes, the limit is {LARGEST_HEADER}")
        try:
            header = json.loads(os.pread(self.descriptor, length, 8), object_pairs_hook=_no_doubles)
        except (ValueError, RecursionError) as error:
            self._refuse(f"its header is not JSON: {' '.join(str(error).split())[:200]}")
        if not isinstance(header, dict):
            self._refuse("its header must be a JSON object")
        metadata = header.pop("__metadata__", {})
        self.metadata = metadata if isinstance(metadata, dict) else {}
        for name, described in header.items():
            self._add(name, described, 8 + length)
        end = 8 + length
        for name, (offset, size) in sorted(self._spans.items(), key=lambda item: item[1]):
            if offset != end:
                self._refuse(f"tensor {name[:80]!r} {'overlaps another' if offset < end else 'leaves a gap'}")
            end += size
        if end != self.size:
            self._refuse(f"its tensors end at byte {end}, the file at {self.size}")

    def _add(self, name: str, described: Any, begin: int) -> None:
        match described:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(stop)]}:
                pass
            case _:
                self._refuse(f"tensor {name[:80]!r} has no dtype, shape or offsets")
        if not all(type(n) is int and n >= 0 for n in shape) or not 0 <= start <= stop <= self.size - begin:
            self._refuse(f"tensor {name[:80]!r} has a wrong shape or lies outside of the file")
        if dtype in _SIZES and math.prod(shape) * _SIZES[dtype] != stop - start:
            self._refuse(f"tensor {name[:80]!r} of shape {tuple(shape)[:8]} and type {dtype} has {stop - start} bytes")
        self.entries[name] = Entry(dtype, tuple(shape))
        self._spans[name] = (begin + start, stop - start)

    def _refuse(self, why: str) -> NoReturn:
        raise ValueError(f"{self.path} is not a safetensors file: {why}")


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


class Shards:
    """The tensors of several files."""

    def __init__(self, files: Iterable[Tensors]) -> None:
        self.entries: dict[str, Entry] = {}
        self._homes: dict[str, Tensors] = {}
        for file in files:
            for name, entry in file.entries.items():
                if name in self._homes:
                    raise ValueError(f"two files have a tensor {name[:80]!r}: pass one of them")
                self.entries[name], self._homes[name] = entry, file

    def read(self, name: str) -> Tensor:
        return self._homes[name].read(name)
