"""Multiply rows with the Cayley transform of a skew-symmetric matrix, by one factorization."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._method import RowsFunction, in_full_precision
from ._packed import pack, skew


def factors(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Factorize I + A (LU), whose inverse has norm at most one. A is clamped where 1 would be lost to rounding."""
    limit = 0.01 / torch.finfo(packed.dtype).eps
    matrix = skew((-packed).clamp(-limit, limit))
    matrix.diagonal(dim1=-2, dim2=-1).add_(1)
    # (I − A)ᵀ: column-major, as LAPACK needs it; _ex: no error check, which would synchronize
    lu, pivots, _ = torch.linalg.lu_factor_ex(matrix.mT)
    return lu, pivots


class CayleyRows(RowsFunction):
    """Multiply rows V with Rᵀ, R = (I + A)(I − A)⁻¹, by one factorization and n solves.

    As (I − A)ᵀ = I + A, Rᵀ = 2(I + A)⁻¹ − I.
    With Z = V(I + A)⁻¹ and S = G(I − A)⁻¹ the gradients are −2 ZᵀS to A and 2S − G to V.
    """

    @staticmethod
    def forward(packed: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        lu, pivots = factors(packed)
        solved = torch.linalg.lu_solve(lu, pivots, rows, left=False)
        return 2 * solved - rows, solved, lu, pivots

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        packed, rows, solved, lu, pivots = ctx.saved_tensors
        if torch.is_grad_enabled():  # double backward: saved intermediates have no history
            lu, pivots = factors(packed)
            solved = torch.linalg.lu_solve(lu, pivots, rows, left=False)
        back = torch.linalg.lu_solve(lu, pivots, grad, left=False, adjoint=True)
        to_packed = to_rows = None
        if ctx.needs_input_grad[0]:
            outer = (-2 * solved).mT @ back
            to_packed = pack(outer - outer.mT)
        if ctx.needs_input_grad[1]:
            to_rows = 2 * back - grad
        return to_packed, to_rows
