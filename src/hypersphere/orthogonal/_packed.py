"""Skew-symmetric matrices and their packed strict upper triangles."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def matrix_size(packed: Tensor) -> int:
    """Return m of a packed triangle (..., m(m−1)/2)."""
    return (1 + math.isqrt(1 + 8 * packed.shape[-1])) // 2


def pack(matrix: Tensor) -> Tensor:
    """Pack the strict upper triangle of (..., m, m), row by row: (..., m(m−1)/2)."""
    return matrix.flatten(-2).index_select(-1, _triangle_indices(matrix.shape[-1], matrix.device, torch.int32))


def skew(packed: Tensor) -> Tensor:
    """Compute A = T − Tᵀ (..., m, m) from the packed strict upper triangle of T."""
    m = matrix_size(packed)
    indices = _triangle_indices(m, packed.device, torch.int64).expand(packed.shape)
    upper = packed.new_zeros(*packed.shape[:-1], m * m).scatter(-1, indices, packed).unflatten(-1, (m, m))
    return upper - upper.mT


def _triangle_indices(m: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the indices of the strict upper triangle in a flattened (m, m)."""
    rows, columns = torch.triu_indices(m, m, 1, dtype=dtype, device=device)
    return rows.mul_(m).add_(columns)
