"""A rotated Linear by its rotated weight, without the gradient to that weight.

With W = R_out V R_inᵀ and y = x Wᵀ the gradient to x is g W. As R_in and R_out are orthogonal, their gradients follow
from what goes in and out of the layer alone: (xᵀ (g W)) R_in and (gᵀ y) R_out, block by block. So only V is kept for
the backward pass, and the large product gᵀx is never computed.

Shapes: x (T, d), V (N, d), matrices of R (B, m, m).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from .._internal.functions import is_transformed
from ..cosine import apply, autocast_enabled, without_autocast
from .plan import OUTPUT, Plan
from .turns import Turn

_EXACT = (torch.float32, torch.float64)


def can_form(plan: Plan, outputs: int) -> bool:
    """Return whether R and its gradient need no gradient to the weight, and whether that saves multiplications.

    Per row of inputs the gradient to a weight takes d·N. The neurons must be fixed and R orthogonal by construction,
    which OGD's is not. A whole R is cheaper without its matrix.
    """
    in_blocks = all(side.blocks > 1 for side in plan.sides)
    fixed = not plan.learned and plan.method != "ogd"
    return fixed and in_blocks and plan.multiplications <= plan.dimension * outputs


def is_cheaper_formed(plan: Plan, x: Tensor, rows: Tensor) -> bool:
    """Return whether forming W takes fewer multiplications than rotating T inputs and outputs, and is possible.

    R_in on p of d inputs in blocks of m takes 3·T·p·m on the inputs. Forming W twice, forward and backward, takes
    2·N·p·m, and the gradient T·p·m. R_out likewise.
    """
    if x.dtype not in _EXACT or x.dtype != rows.dtype or autocast_enabled(x) or is_transformed():
        return False
    (outputs, inputs), count = rows.shape, x.numel() // x.shape[-1]
    forming = sum(side.rotated * side.size * (inputs if side.prefix == OUTPUT else outputs) for side in plan.sides)
    return forming < count * plan.multiplications


def formed_linear(x: Tensor, rows: Tensor, bias: Tensor | None, turns: Sequence[Turn]) -> Tensor:
    """Compute x Wᵀ + bias, W = R_out V R_inᵀ."""
    none, sides = (None, None), {}
    for turn in turns:
        matrices = turn.matrices().to(x.dtype).expand(turn.blocks(rows.shape), -1, -1)  # a shared block is expanded
        sides[turn.of_outputs] = (matrices, turn.dims)
    flat = x.reshape(-1, x.shape[-1])
    fused = None if True in sides else bias  # the gradient to R_out needs the outputs without bias
    y: Tensor = apply(FormedLinear, flat, rows, fused, *sides.get(False, none), *sides.get(True, none))
    y = y if bias is None or bias is fused else y + bias
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
        ctx.save_for_backward(x, rows, inner, dims, outer, outer_dims, None if outer is None else output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, rows, inner, dims, outer, outer_dims, y = ctx.saved_tensors
        needs_x, _, needs_bias, needs_inner, _, needs_outer, _ = ctx.needs_input_grad
        with without_autocast(grad):
            to_x = grad @ _form(rows, inner, dims, outer, outer_dims)
            to_bias = grad.sum(0) if needs_bias else None
            to_inner = _block_products(x, to_x, dims, inner) @ inner if needs_inner else None
            to_outer = _block_products(grad, y, outer_dims, outer) @ outer if needs_outer else None
        return to_x if needs_x else None, None, to_bias, to_inner, None, to_outer, None


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
