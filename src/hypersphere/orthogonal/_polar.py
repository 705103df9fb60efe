"""Multiply rows with the orthogonal factor of a polar decomposition (Löwdin's symmetric orthogonalization)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._internal.linalg import svd
from ._method import RowsFunction, in_full_precision


class PolarRows(RowsFunction):
    """Multiply rows V with Rᵀ, R = U(UᵀU)^(−½) = WZᵀ with U = WΣZᵀ.

    dR = R Ω, where Ω is skew and HΩ + ΩH = RᵀdU − dUᵀR with H = RᵀU = ZΣZᵀ. So the gradient to U is RΨ with
    HΨ + ΨH = K − Kᵀ, K = RᵀGᵀV: in the basis Z a division by σᵢ + σⱼ, never by a difference.
    """

    @staticmethod
    def forward(matrix: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        w, sigma, zt = svd(matrix)
        return (rows @ zt.mT) @ w.mT, w, sigma, zt

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        matrix, rows, w, sigma, zt = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _differentiable_backward(matrix, rows, grad)
        turned = grad @ w  # (n, m), in the basis Z
        to_matrix = None
        if ctx.needs_input_grad[0]:
            k = turned.mT @ (rows @ zt.mT)
            to_matrix = w @ ((k - k.mT) / _pairwise_sums(sigma)) @ zt
        return to_matrix, turned @ zt if ctx.needs_input_grad[1] else None


def _differentiable_backward(matrix: Tensor, rows: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device).expand_as(matrix)
    r = PolarRows.apply(matrix, identity)[0].mT
    h = r.mT @ matrix
    turned = grad @ r
    k = turned.mT @ rows
    return r @ Sylvester.apply((h + h.mT) / 2, k - k.mT), turned


class Sylvester(Function):
    """Solve HX + XH = C for X; H is symmetric without negative eigenvalues."""

    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor, c: Tensor) -> Tensor:
        values, z = torch.linalg.eigh(h)
        return z @ ((z.mT @ c @ z) / _pairwise_sums(values.clamp(min=0))) @ z.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        h, x = ctx.saved_tensors
        to_c = Sylvester.apply(h, grad)
        return -(to_c @ x.mT + x.mT @ to_c), to_c


def _pairwise_sums(sigma: Tensor) -> Tensor:
    """Compute σᵢ + σⱼ, at least eps times the largest."""
    largest = sigma.amax(-1, keepdim=True)[..., None]
    floor = torch.where(largest > 0, largest, 1.0) * torch.finfo(sigma.dtype).eps
    return torch.maximum(sigma.unsqueeze(-1) + sigma.unsqueeze(-2), floor)
