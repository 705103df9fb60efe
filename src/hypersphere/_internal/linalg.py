"""Factorizations that do not fail on finite matrices."""

from __future__ import annotations

import torch
from torch import Tensor


def svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the singular value decomposition U, σ, Vᴴ, in float64 where float32 does not converge.

    LAPACK's float32 routine gives up on some matrices with many equal singular values, such as the identity plus a
    matrix of low rank: what rotations look like that start from the identity.
    """
    try:
        u, sigma, vh = torch.linalg.svd(matrix)
    except RuntimeError:  # torch.linalg.LinAlgError
        u, sigma, vh = (part.to(matrix.dtype) for part in torch.linalg.svd(matrix.double()))
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
