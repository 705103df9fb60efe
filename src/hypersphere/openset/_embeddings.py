"""Checks, directions and blocks of embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from .._internal import checks
from .._internal.tensors import from_floats

Rows = Tensor | npt.NDArray[np.floating[Any]]
QUERIES, DATABASE = 1024, 4096  # rows of a block: from 32 MB on the C library returns and zeroes memory each time


def check_embeddings(name: str, value: Any, expected: str, dims: int, shape: tuple[int, ...] | None = None) -> None:
    """Require finite floats with `dims` dimensions (of this shape), none 0 but the first; `expected` says which."""
    checks.floating(name, value)
    if value.dim() != dims or 0 in value.shape[1:] or (shape is not None and value.shape != shape):
        raise ValueError(f"{name} must be {expected}, got {tuple(value.shape)}")
    if not value.isfinite().all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")


def check_labels(name: str, labels: Any, rows: int) -> None:
    """Require integers (rows,)."""
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex() or labels.shape != (rows,):
        got = f"{tuple(labels.shape)} of {labels.dtype}" if isinstance(labels, Tensor) else type(labels).__name__
        raise ValueError(f"{name} must be ({rows},) integers, got {got}")


def unit_rows(x: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the directions of the rows of `x` (..., d), whatever their lengths; zero rows stay zero."""
    x = x.detach().to(torch.promote_types(x.dtype, dtype))
    scaled = x / x.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return F.normalize(scaled.to(dtype), dim=-1)


def blocks(
    queries: Rows, database: Rows, *, unit: bool = True, dtype: torch.dtype = torch.float32
) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
    """Yield (rows, columns, left, right): all pairs in blocks, so that ``left @ right.T`` fits in memory.

    Every row of `database` is read once, in order; numpy arrays may be mapped from files.

    Args:
        queries, database: (Q, d) and (N, d) floats.
        unit: whether `left` and `right` are directions.
        dtype: of `left` and `right`, on the device of the queries.
    """
    device = queries.device if isinstance(queries, Tensor) else None

    def read(name: str, rows: Rows, where: slice) -> Tensor:
        part = rows[where]
        x = part.detach() if isinstance(part, Tensor) else from_floats(part)
        x = x.to(device)
        short = x.to(dtype)
        lengths = torch.linalg.vector_norm(short, dim=1, keepdim=True)
        if bool(((lengths > 1e-15) & (lengths < 1e15)).all()):  # as good as always, and one pass instead of four
            return short / lengths if unit else short
        x = unit_rows(x, dtype) if unit else short
        if not x.isfinite().all():
            raise ValueError(f"{name} must be finite{'' if unit else f' in {dtype}'}, got NaN or infinity")
        return x

    for columns in _slices(len(database), DATABASE):
        right = read("database", database, columns)
        for rows in _slices(len(queries), QUERIES):
            yield rows, columns, read("queries", queries, rows), right


def _slices(n: int, size: int) -> Iterator[slice]:
    for begin in range(0, n, size):
        yield slice(begin, min(begin + size, n))
