"""A rotated Linear by its rotated weight, without the gradient to that weight.

With W = R_out V R_inᵀ and y = x Wᵀ the gradient to x is g W. As R_in and R_out are orthogonal, their gradients follow
from what goes in and out of the layer alone: (xᵀ (g W)) R_in and (gᵀ y) R_out, block by block. The large product gᵀx is
never computed, and W is not kept for the backward pass but formed again.

Shapes: x (T, d), V (N, d), matrices of R (B, m, m).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from .._internal.functions import apply
from .._internal.precision import without_autocast
from .block_rotation import BlockRotation


def formed_linear(x: Tensor, rows: Tensor, bias: Tensor | None, rotations: Sequence[BlockRotation]) -> Tensor:
    """Compute x Wᵀ + bias, W = R_out V R_inᵀ."""
    none, sides = (None, None), {}
    for rotation in rotations:
        blocks = rotation.blocks(rows.shape)  # a shared block is expanded
        sides[rotation.of_outputs] = (rotation.matrices().to(x.dtype).expand(blocks, -1, -1), rotation.dims)
    flat = x.reshape(-1, x.shape[-1])
    fused = None if True in sides else bias
    y: Tensor = apply(FormedLinear, flat, rows, fused, *sides.get(False, none), *sides.get(True, none))
    if True in sides:  # the gradient to R_out needs these outputs, without bias and as they are
        y = y.clone() if bias is None else y + bias.to(y.dtype)
    return y.view(*x.shape[:-1], len(rows))


class FormedLinear(Function):
    """Compute x Wᵀ + bias from V and the matrices and dimensions of R_in and R_out; None without that side.

    There is no bias with R_out.
    """

    @staticmethod
    def forward(
        x: Tensor,
        rows: Tensor,
        bias: Tensor | None,
        inner: Tensor | None,
        dims: Tensor | None,
        outer: Tensor | None,
        outer_dims: Tensor | None,
    ) -> Tensor:
        return F.linear(x, _form(rows, inner, dims, outer, outer_dims), bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor | None, ...], output: Tensor) -> None:
        x, rows, _, inner, dims, outer, outer_dims = inputs
        ctx.is_tensor = tuple(tensor is not None for tensor in inputs)
        needs = _needed_gradients(ctx)
        x, y = x if needs[3] else None, output if needs[5] else None
        ctx.save_for_backward(x, rows, inner, dims, outer, outer_dims, y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, rows, inner, dims, outer, outer_dims, y = ctx.saved_tensors
        needs_x, _, needs_bias, needs_inner, _, needs_outer, _ = _needed_gradients(ctx)
        with without_autocast(grad):
            to_x = to_inner = to_outer = None
            if needs_x or needs_inner:
                to_x = grad @ _form(rows, inner, dims, outer, outer_dims)
                to_inner = _block_products(x, to_x, dims, inner) @ inner if needs_inner else None
            if needs_outer:
                to_outer = _block_products(grad, y, outer_dims, outer) @ outer
        return to_x, None, grad.sum(0) if needs_bias else None, to_inner, None, to_outer, None


def _needed_gradients(ctx: Any) -> tuple[bool, ...]:
    """Return for each input whether it needs a gradient."""
    needs: tuple[bool, ...] = ctx.needs_input_grad
    # under compile needs_input_grad is wrong; unused gradients are pruned anyway
    return ctx.is_tensor if torch.compiler.is_compiling() else needs


def _form(
    rows: Tensor, inner: Tensor | None, dims: Tensor | None, outer: Tensor | None, outer_dims: Tensor | None
) -> Tensor:
    weight = rows if inner is None else _multiply_blocks(inner, rows.mT, dims).mT
    return weight if outer is None else _multiply_blocks(outer, weight, outer_dims)


def _multiply_blocks(matrices: Tensor, columns: Tensor, dims: Tensor | None) -> Tensor:
    """Compute R X for columns X (d, n), of which `dims` are rotated."""
    chosen = columns if dims is None else columns.index_select(0, dims)
    out = torch.bmm(matrices, chosen.unflatten(0, matrices.shape[:2])).flatten(0, 1)
    return out if dims is None else columns.index_copy(0, dims, out)


def _block_products(a: Tensor, b: Tensor, dims: Tensor | None, matrices: Tensor) -> Tensor:
    """Compute AᵀB for each block of the columns of A and B, (T, d)."""
    if dims is not None:
        a, b = a.index_select(1, dims), b.index_select(1, dims)
    first, second = (t.unflatten(1, matrices.shape[:2]).transpose(0, 1) for t in (a, b))
    return torch.bmm(first.mT, second)
