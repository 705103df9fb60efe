"""Skew-symmetric matrices and their packed strict upper triangles."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor


def matrix_size(packed: Tensor) -> int:
    """Return m of a packed triangle (..., m(m−1)/2)."""
    return (1 + math.isqrt(1 + 8 * packed.shape[-1])) // 2


def pack(matrix: Tensor) -> Tensor:
    """Pack the strict upper triangle of (..., m, m), row by row: (..., m(m−1)/2)."""
    return matrix.flatten(-2).index_select(-1, _indices(matrix.shape[-1], matrix.device)[0])


def pack_difference(matrix: Tensor) -> Tensor:
    """Compute :func:`pack` of M − Mᵀ."""
    upper, lower, _, _ = _indices(matrix.shape[-1], matrix.device)
    flat = matrix.flatten(-2)
    return flat.index_select(-1, upper) - flat.index_select(-1, lower)


def skew(packed: Tensor) -> Tensor:
    """Compute A = T − Tᵀ (..., m, m) from the packed strict upper triangle of T."""
    m = matrix_size(packed)
    if m == 1:
        return packed.new_zeros(*packed.shape[:-1], 1, 1)
    _, _, source, signs = _indices(m, packed.device)
    return packed.index_select(-1, source).unflatten(-1, (m, m)) * signs.to(packed.dtype)


@lru_cache(maxsize=32)
def _cached_indices(m: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, columns = torch.triu_indices(m, m, 1, dtype=torch.int64, device=device)
    source = torch.zeros(m, m, dtype=torch.int64, device=device)
    source[rows, columns] = source[columns, rows] = torch.arange(len(rows), device=device)
    ones = torch.ones(m, m, device=device, dtype=torch.int8)
    return rows * m + columns, columns * m + rows, source.flatten(), ones.triu(1) - ones.tril(-1)


def _indices(m: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return indices of both triangles in a flattened (m, m), the packed element at each place, and its sign."""
    if torch.compiler.is_compiling() or device.type == "meta":
        return _cached_indices.__wrapped__(m, device)
    return _cached_indices(m, device)
