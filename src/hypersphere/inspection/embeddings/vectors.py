"""The rows of an array of embeddings, in blocks: a tensor, an array, or an array mapped from a file."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..._internal import draws
from ..._internal.tensors import from_floats

Array = Tensor | npt.NDArray[Any]
BLOCK = 8192  # rows that are read at once
CHUNK = 65536  # rows of a part of the database
_SCATTERED = 256  # rows that are read at once from all over a mapped file: each maps some 256 kB
_IN_MEMORY = 2**26  # numbers, 256 MB: up to this size the unit rows are computed once
_CAN_FORGET = hasattr(mmap, "MADV_DONTNEED")
_OF_NUMPY = (torch.float16, torch.float32, torch.float64)
_MOST_DIMENSIONS = 8192  # a spectrum takes d³


class Vectors:
    """Embeddings (N, d) as stored, and the directions of those rows that have one.

    Attributes:
        data: (N, d) floats.
        index: the rows that are finite and not zero, after :meth:`leave_out`; None: all.
    """

    def __init__(self, data: Array, name: str = "embeddings") -> None:
        if not isinstance(data, np.ndarray | Tensor):
            raise TypeError(f"{name} must be a file, a numpy array or a tensor (N, d), got {type(data).__name__}")
        is_real = data.is_floating_point() if isinstance(data, Tensor) else np.issubdtype(data.dtype, np.floating)
        if not is_real:
            hint = ": decode integer codes first" if "int" in str(data.dtype) else ""
            raise ValueError(f"{name} must have a floating point dtype, got {data.dtype}{hint}")
        if isinstance(data, Tensor) and (data.layout is not torch.strided or data.is_meta or data.is_nested):
            raise ValueError(f"{name} must be dense and hold values, got {data.layout} on {data.device}")
        if data.ndim != 2 or data.shape[0] < 3 or data.shape[1] < 2:
            allowed = "(N, d) with at least 3 rows and 2 dimensions"
            raise ValueError(f"{name} must be {allowed}, got {tuple(data.shape)}")
        if data.shape[1] > _MOST_DIMENSIONS:
            raise ValueError(f"{name} must have at most {_MOST_DIMENSIONS} dimensions, got {data.shape[1]}")
        self.data: Array = data.detach() if isinstance(data, Tensor) else data
        self.index: npt.NDArray[np.int64] | None = None
        self._unit: Tensor | None = None

    def leave_out(self, bad: npt.NDArray[np.bool_]) -> None:
        """Leave out the rows (N,) that are true."""
        self.index = np.flatnonzero(~bad) if bad.any() else None

    def __len__(self) -> int:
        return len(self.data) if self.index is None else len(self.index)

    @property
    def dimension(self) -> int:
        return int(self.data.shape[1])

    def stored(self, rows: Any) -> Tensor:
        """Return rows of the file by their places in it, in a type that numpy has."""
        if isinstance(self.data, Tensor):
            part = self.data[rows].cpu()
            return part if part.dtype in _OF_NUMPY else part.float()
        pieces = [rows] if isinstance(rows, slice) else [rows[i] for i in blocks(max(len(rows), 1), _SCATTERED)]
        copies = []
        for piece in pieces:
            copies.append(from_floats(self.data[piece]))
            _forget_pages(self.data)
        return copies[0] if len(copies) == 1 else torch.cat(copies)

    def number(self, rows: Any) -> Any:
        """Return the places in the file of rows that are not left out."""
        rows = np.asarray(rows)
        return rows if self.index is None else self.index[rows]

    def unit(self, rows: slice | npt.NDArray[np.int64]) -> Tensor:
        """Return the directions of the rows that are not left out, in float32."""
        if self._unit is None and len(self) * self.dimension <= _IN_MEMORY:
            self._unit = torch.empty(len(self), self.dimension)
            for part in blocks(len(self)):
                self._unit[part] = self._normalized(part)
        return self._normalized(rows) if self._unit is None else self._unit[rows]

    def _normalized(self, rows: slice | npt.NDArray[np.int64]) -> Tensor:
        x = self.stored(rows if self.index is None else self.index[rows])
        x = x.double() if x.dtype == torch.float64 else x.float()
        lengths = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        if not bool(((lengths > 1e-15) & (lengths < 1e15)).all()):
            x = x / x.abs().amax(1, keepdim=True)
            lengths = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        return (x / lengths).float()

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[int, Tensor]]:
        """Yield (start, directions) of all rows that are not left out."""
        for part in blocks(len(self), size):
            yield part.start, self.unit(part)

    def sample(self, count: int) -> npt.NDArray[np.int64]:
        """Draw rows that are not left out, always the same, in the order of the file."""
        if len(self) <= count:
            return np.arange(len(self))
        drawn = torch.randperm(len(self), generator=draws.generator(0, "rows", count))[:count]
        return drawn.sort().values.numpy()


def _forget_pages(data: Array) -> None:
    """Let go of the pages of a mapped file, which count as memory of the process until the system needs them."""
    if isinstance(data, np.memmap) and data.mode == "r" and isinstance(data.base, mmap.mmap) and _CAN_FORGET:
        data.base.madvise(mmap.MADV_DONTNEED)


def uniform_points(count: int, dimension: int) -> Vectors:
    """Draw uniform points of the sphere, always the same."""
    points = torch.randn(count, dimension, generator=draws.generator(0, "uniform", count))
    return Vectors(torch.nn.functional.normalize(points, dim=1))


def blocks(count: int, size: int = BLOCK) -> Iterator[slice]:
    """Yield the slices of so many rows."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
