"""Multiply rows with the orthogonal factor of a QR factorization: Gram-Schmidt, Householder, Givens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._method import RowsFunction, in_full_precision


def factors(matrix: Tensor, proper: bool) -> tuple[Tensor, Tensor]:
    """Factorize matrix = QT with a positive diagonal of T; `proper` sets the sign of the last column: det Q = +1.

    Elements of T's diagonal that are too small to divide by are raised, so a singular matrix has a finite gradient.
    """
    if proper:
        if matrix.is_meta:
            raise NotImplementedError(
                "methods 'householder' and 'givens' have no kernel for the meta device (torch.geqrf has none): "
                "load the weights first, or use 'gram_schmidt'"
            )
        reflections, scales = torch.geqrf(matrix)
        q, t = torch.linalg.householder_product(reflections, scales), reflections.triu()
    else:
        q, t = torch.linalg.qr(matrix)
    signs = _signs(t.diagonal(dim1=-2, dim2=-1))
    if proper:  # det Q = Π signs · (−1)^(number of reflections)
        determinant = _signs(0.5 - (scales != 0).to(q.dtype)).prod(-1) * signs.prod(-1)
        last = torch.arange(q.shape[-1], device=q.device) == q.shape[-1] - 1
        signs = torch.where(last, signs * determinant.unsqueeze(-1), signs)
    t.mul_(signs.unsqueeze(-1))
    diagonal = t.diagonal(dim1=-2, dim2=-1)
    lengths = torch.linalg.vector_norm(t, dim=-2)
    floor = torch.where(lengths > 0, lengths, 1.0) * torch.finfo(t.dtype).eps
    diagonal.copy_(torch.where(diagonal.abs() < floor, floor * _signs(diagonal), diagonal))
    return q.mul_(signs.unsqueeze(-2)), t


def differentiable_factors(matrix: Tensor, proper: bool) -> tuple[Tensor, Tensor]:
    """Compute :func:`factors` by torch's QR, for double backward."""
    q, t = torch.linalg.qr(matrix)
    with torch.no_grad():
        signs = _signs(t.diagonal(dim1=-2, dim2=-1) * factors(matrix, proper)[1].diagonal(dim1=-2, dim2=-1))
    return q * signs.unsqueeze(-2), t * signs.unsqueeze(-1)


class QRRows(RowsFunction):
    """Multiply rows V with Qᵀ, U = QT.

    dQ = QΩ with Ω skew and the strict lower triangle of QᵀdU T⁻¹, so with K = QᵀGᵀV (G the gradient to V Qᵀ) the
    gradient to U is Q·tril(K − Kᵀ, −1)·T⁻ᵀ, and that to V is GQ.
    """

    @staticmethod
    def forward(matrix: Tensor, rows: Tensor, proper: bool) -> tuple[Tensor, Tensor, Tensor]:
        q, t = factors(matrix, proper)
        return rows @ q.mT, q, t

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        matrix, rows, q, t = ctx.saved_tensors
        if torch.is_grad_enabled():
            q, t = differentiable_factors(matrix, ctx.options[0])
        turned = grad @ q
        to_matrix = None
        if ctx.needs_input_grad[0]:
            k = turned.mT @ rows
            lower = (k - k.mT).tril(-1)
            to_matrix = torch.linalg.solve_triangular(t.mT, q @ lower, upper=False, left=False)
        return to_matrix, turned if ctx.needs_input_grad[1] else None, None


def _signs(x: Tensor) -> Tensor:
    return torch.where(x < 0, -1.0, 1.0).to(x.dtype)
