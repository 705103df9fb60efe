"""The Cayley transform of a skew-symmetric matrix, and its product with rows by one factorization."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._internal.functions import apply
from ._method import RowsFunction, in_full_precision
from ._packed import pack, pack_difference, skew

# On a CPU, float64 inverts small float32 matrices faster than float32 does (32-d 0.6, 64-d 0.7, 256-d 1.0 of the time:
# benchmarks/adapters.py), and more exactly.
_INVERTED_IN_DOUBLE = 256


def factors(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Factorize I + A (LU), whose inverse has norm at most one. A is clamped where 1 would be lost to rounding."""
    # (I − A)ᵀ: column-major, as LAPACK needs it; _ex: no error check, which would synchronize
    lu, pivots, _ = torch.linalg.lu_factor_ex(_identity_minus_skew(packed).mT)
    return lu, pivots


def _identity_minus_skew(packed: Tensor) -> Tensor:
    limit = 0.01 / torch.finfo(packed.dtype).eps
    matrix = skew((-packed).clamp(-limit, limit))
    matrix.diagonal(dim1=-2, dim2=-1).add_(1)
    return matrix


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


class CayleyMatrix(Function):
    """Compute R = (I + A)(I − A)⁻¹ = 2Z − I, Z = (I − A)⁻¹; the gradient to A is 2 ZᵀGZᵀ."""

    generate_vmap_rule = True

    @staticmethod
    def forward(packed: Tensor) -> Tensor:
        matrix = _identity_minus_skew(packed)
        if matrix.device.type == "cpu" and matrix.shape[-1] <= _INVERTED_IN_DOUBLE:
            matrix = matrix.double()
        rotation = torch.linalg.inv_ex(matrix).inverse.to(packed.dtype).mul_(2)
        rotation.diagonal(dim1=-2, dim2=-1).sub_(1)
        return rotation

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)  # an output has a history, so the backward pass can be differentiated

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (rotation,) = ctx.saved_tensors
        inverse = rotation.clone()
        inverse.diagonal(dim1=-2, dim2=-1).add_(1)
        outer = inverse.mT @ grad @ inverse.mT  # 4 ZᵀGZᵀ
        return pack_difference(outer) / 2


def cayley_rows(packed: Tensor, rows: Tensor) -> Tensor:
    """Multiply rows V (..., n, m) with Rᵀ: by solving, or for n ≥ 3m faster by forming R."""
    if rows.shape[-2] >= 3 * rows.shape[-1]:
        return rows @ apply(CayleyMatrix, packed).mT
    product: Tensor = apply(CayleyRows, packed, rows)[0]
    return product
