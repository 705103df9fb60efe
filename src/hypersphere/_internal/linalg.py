"""Factorizations that do not fail on finite matrices."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor

from .checks import can_read_values


def svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the singular value decomposition U, σ, Vᴴ, in float64 where float32 does not converge.

    LAPACK's float32 routine gives up on some matrices with many equal singular values, such as the identity plus a
    matrix of low rank: what rotations look like that start from the identity. Or it returns NaN without an error (seen
    with MKL 2024.2, 784 dimensions, MNIST). So on a CPU it is used only where its result can be looked at.
    """
    if matrix.device.type != "cpu" or matrix.dtype == torch.float64:
        return _svd(matrix)
    if can_read_values(matrix):
        with suppress(RuntimeError):  # torch.linalg.LinAlgError
            factors = _svd(matrix)
            if bool(factors[0].sum().isfinite()):
                return factors
    u, sigma, vh = (part.to(matrix.dtype) for part in _svd(matrix.double()))
    return u, sigma, vh


def _svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    u, sigma, vh = torch.linalg.svd(matrix)
    return u, sigma, vh


def nearest_orthogonal(matrix: Tensor, *, proper: bool = False) -> Tensor:
    """Return the orthogonal matrix nearest to (..., d, d): U Vᴴ of its singular value decomposition.

    For W₀ᵀW₁ it is the R that minimizes ‖W₁ − W₀R‖: the orthogonal Procrustes problem.

    Args:
        proper: the nearest one with determinant +1.
    """
    u, _, vh = svd(matrix)
    if proper:
        sign = torch.linalg.det(u) * torch.linalg.det(vh)
        u = torch.cat([u[..., :-1], u[..., -1:] * sign.sign()[..., None, None]], -1)
    return u @ vh
