"""Skew-symmetric matrices and the strict upper triangles that hold their numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def size_of(packed: Tensor) -> int:
    """m of a packed triangle (..., m(m−1)/2)."""
    return (1 + math.isqrt(1 + 8 * packed.shape[-1])) // 2


def pack(matrix: Tensor) -> Tensor:
    """The strict upper triangle of (..., m, m), row by row: (..., m(m−1)/2)."""
    return matrix.flatten(-2).index_select(-1, _places(matrix.shape[-1], matrix.device, torch.int32))


def skew(packed: Tensor) -> Tensor:
    """A = T − Tᵀ (..., m, m) with `packed` the strict upper triangle of T."""
    m = size_of(packed)
    places = _places(m, packed.device, torch.int64).expand(packed.shape)
    upper = packed.new_zeros(*packed.shape[:-1], m * m).scatter(-1, places, packed).unflatten(-1, (m, m))
    return upper - upper.mT


def _places(m: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Where the strict upper triangle lies in a flattened (m, m)."""
    rows, columns = torch.triu_indices(m, m, 1, dtype=dtype, device=device)
    return rows.mul_(m).add_(columns)
