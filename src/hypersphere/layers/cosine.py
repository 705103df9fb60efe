"""Cosines of neurons with rows of a matrix, or with every patch of a feature map.

Every angle in this package comes from one of these functions. Their gradients are hand-written and twice
differentiable:

- :func:`unit` scales rows to length one, :func:`project` multiplies them with unit neurons,
- :func:`cosine_linear` is the cosine of every input row with every neuron,
- :func:`cosine_conv` is the cosine of every patch with every filter, at the price of a convolution and a box filter.

A vector counts as zero when its norm is below 3e-16 in float32 (2e-146 in float64). A zero vector has cosine 0 with
everything and receives gradient 0. Vectors too long to be squared (above 1.8e19 in float32) are scaled first where
that is free to check, on the CPU outside of a graph (see :mod:`hypersphere._internal.overflow`); elsewhere they count
as zero. NaN in, NaN out.

Shapes: B batch, C input channels, O filters, G groups, N neurons, d their dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from .._internal.functions import apply, can_overwrite, chain, is_recorded, or_zeros, save
from .._internal.overflow import (
    StatelessFunction,
    can_read_for_free,
    finite_gradient,
    has_overflow,
    max_root,
    shrink_factors,
    shrink_huge,
)
from .._internal.precision import accumulation_dtype, autocast_enabled, without_autocast


def unit(x: Tensor) -> Tensor:
    """Scale rows to length one: x / ‖x‖ along the last dimension; zero rows stay zero, with gradient zero.

    Args:
        x: (..., d), any floating dtype; norms are computed in float32 at least.

    Example:
        >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    return unit_unchecked(shrink_huge(x, (-1,)))


def unit_unchecked(x: Tensor) -> Tensor:
    """Compute :func:`unit` without the overflow check, for rows that are known to be short (states of an RNN)."""
    y: Tensor = apply(_Unit, finite_gradient(x))[0]
    return y


def project(x: Tensor, weight: Tensor, target: Tensor | None = None, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Compute s·⟨x, w/‖w‖⟩ (..., N) of rows x (..., d) with neurons w (N, d), without forming the unit neurons.

    The second result holds ⟨x, w/‖w‖⟩ at the indices `target` (..., n); its gradient needs no tensor of its own.
    """
    if target is None:
        target = torch.zeros(*x.shape[:-1], 0, dtype=torch.int64, device=x.device)
    x, weight, autocast_off = _cast_for_product(x, weight)
    with autocast_off:
        norms = _row_norms(weight.detach())
        if has_overflow(norms, max_root(norms.dtype, 2)):  # infinite, or with one number a row near to it
            weight = shrink_huge(weight, (1,))
            norms = _row_norms(weight.detach())
        headroom = 1.0 if can_read_for_free(norms) else _headroom(x.dtype)  # norms that were read are finite
        y, _, at_target = apply(_Project, x, weight, target, norms, headroom, scale)
    return y, at_target


def cosine_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Compute the cosines (..., N) of rows x (..., d) with neurons w (N, d), in [-1, 1]."""
    return clamp_cosine(project(unit(x), weight)[0])


def clamp_cosine(c: Tensor) -> Tensor:
    """Clamp rounding errors to [-1, 1] without changing the gradient."""
    clamped: Tensor = apply(_ClampCosine, c)
    return clamped


def cosine_conv(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """Compute the cosines (B, O, ...) of the patches of x (B, C, ...) with filters (O, C/G, ...), in [-1, 1].

    Under autocast the product runs in autocast's dtype, norms in float32.
    """
    x, weight = shrink_huge(x, range(1, x.dim())), shrink_huge(weight, range(1, weight.dim()))
    if _product_dtype(x) is torch.float16:
        x = _to_float16_range(finite_gradient(x))
    x, weight, autocast_off = _cast_for_product(x, weight)
    options = (tuple(stride), tuple(padding), tuple(dilation), groups)
    with autocast_off:
        c: Tensor = apply(_CosineConv, x, weight, *options)[0]
    return c


def _product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of a product with x: its own, or autocast's."""
    if x.dtype is torch.float64 or not autocast_enabled(x):
        return x.dtype
    return torch.get_autocast_dtype(x.device.type)


def _cast_for_product(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, AbstractContextManager[Any]]:
    """Cast both tensors for a product; return them and the context that switches autocast off."""
    dtype = _product_dtype(x)
    if dtype is not weight.dtype:  # it may have less range
        weight = shrink_huge(weight, range(1, weight.dim()))
    if dtype is torch.float16:  # too little range for weights of any length
        x, weight = finite_gradient(x), finite_gradient(unit(weight.flatten(1))).view_as(weight)
    return x.to(dtype), weight.to(dtype), without_autocast(x)


def inverse_norm(squares: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute 1/√squares, or 0 where the vector counts as zero; `dtype` is that of its elements."""
    info = torch.finfo(squares.dtype)
    # The gradients of a float16 vector below the smallest normal number would overflow.
    smallest = torch.finfo(dtype).tiny ** 2 if dtype is torch.float16 else info.tiny / info.eps
    return torch.threshold(squares, smallest, math.inf).rsqrt()  # too small → ∞, and 1/√∞ = 0


def _to_float16_range(x: Tensor) -> Tensor:
    """Scale each sample by the power of two that brings its largest element to [128, 256); cosines do not change.

    With unit filters the product stays below float16's 65504, and patches 10⁶ times weaker than the strongest count.
    """
    largest = x.detach().abs().amax(dim=tuple(range(1, x.dim())), keepdim=True).to(accumulation_dtype(x.dtype))
    return (x * torch.exp2(7 - largest.clamp_min(2.0**-100).log2().floor())).to(x.dtype)


class _Unit(Function):
    """y = x·n with n = 1/‖x‖; n is an output so that it has second derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        squares = x.to(accumulation_dtype(x.dtype)).square().sum(-1, keepdim=True)
        inverse = inverse_norm(squares, x.dtype)
        return (x * inverse).to(x.dtype), inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        save(ctx, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, grad_inverse: Tensor | None) -> Tensor:
        saved, inverse = ctx.saved_tensors
        dtype, y = saved.dtype, _to_float32_if_half(saved)
        # dy = n·(dx − y·⟨y, dx⟩),  dn = −n²·⟨y, dx⟩
        grad_y = torch.zeros_like(y) if grad_y is None else _to_float32_if_half(grad_y)
        along = (grad_y * y).sum(-1, keepdim=True, dtype=inverse.dtype)
        if grad_inverse is not None:
            along = along + grad_inverse * inverse
        return (torch.addcmul(grad_y, y, along.to(y.dtype), value=-1) * inverse).to(dtype)

    @staticmethod
    def tangents(ctx: Any, dx: Tensor) -> tuple[Tensor, Tensor]:
        y, inverse = ctx.saved_tensors
        along = (y * dx).sum(-1, keepdim=True, dtype=inverse.dtype)
        return ((dx - y * along) * inverse).to(y.dtype), -along * inverse.square()


class _Project(Function):
    """y = s·(x·wᵀ)·n, n = 1/‖w‖, and y/s at the targets, given ‖w‖; n is an output: it has second derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, target: Tensor, norms: Tensor, headroom: float, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        inverse = inverse_norm(norms.square(), weight.dtype)
        y = F.linear(x if headroom == 1 else x * headroom, weight).mul_(inverse * (scale / headroom))
        return y, inverse, y.gather(-1, target) / scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        save(ctx, *inputs[:3], output[1])
        ctx.scale = inputs[5]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad_y: Tensor | None, grad_inverse: Tensor | None, grad_target: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        saved = ctx.saved_tensors
        dtype, (x, weight, target, inverse) = saved[0].dtype, map(_to_float32_if_half, saved)
        grad_y = x.new_zeros(*x.shape[:-1], len(weight)) if grad_y is None else grad_y
        grad_product = (grad_y * (inverse * ctx.scale)).to(x.dtype)
        if grad_target is not None:
            at_target = (grad_target * inverse[target]).to(x.dtype)
            grad_product = chain(grad_product, ("scatter_add", -1, target, at_target))
        grad_x = (grad_product @ weight).to(dtype) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return grad_x, None, None, None, None, None
        flat = x.reshape(-1, x.shape[-1])
        grad_weight = grad_product.reshape(len(flat), len(weight)).mT @ flat
        return grad_x, row_norm_backward(grad_weight, grad_inverse, weight, inverse).to(dtype), None, None, None, None

    @staticmethod
    def tangents(ctx: Any, dx: Tensor | None, dw: Tensor | None, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
        x, weight, target, inverse = ctx.saved_tensors
        dx, dw = or_zeros(dx, x), or_zeros(dw, weight)
        shrink = (weight * dw).sum(1, dtype=inverse.dtype) * inverse.square()  # −dn/n
        dy = (F.linear(dx, weight) + F.linear(x, dw)) * inverse - F.linear(x, weight) * (inverse * shrink)
        dy = dy.to(x.dtype)
        return dy * ctx.scale, -inverse * shrink, dy.gather(-1, target)


class _ClampCosine(StatelessFunction):
    @staticmethod
    def forward(c: Tensor) -> Tensor:
        return c.clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad

    @staticmethod
    def tangents(ctx: Any, dc: Tensor) -> Tensor:
        return dc.clone()


class _CosineConv(Function):
    """c = (w * x)·n·m, where n = 1/‖patch‖ comes from a box filter over the sum of squares and m = 1/‖w‖.

    All three are outputs so that they have second derivatives. The backward pass costs one convolution's backward and,
    for the gradient through n, one box filter of Σ_o(gradient·c) and one fused multiply-add with x.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        c, inverse, inverse_weight, factor = unscaled_cosines(x, weight, stride, padding, dilation, groups)
        c = chain(c, ("mul", broadcast_groups(inverse * factor, c)), ("clamp", -1, 1))
        return c, inverse, inverse_weight

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, *ctx.options = inputs
        save(ctx, x, weight, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad_c: Tensor | None, grad_inverse: Tensor | None, grad_inverse_weight: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        dtype, (x, weight, c, inverse, inverse_weight) = saved[0].dtype, map(_to_float32_if_half, saved)
        stride, padding, dilation, groups = ctx.options
        args = conv_args(stride, padding, dilation, groups)
        grad_c = torch.zeros_like(c) if grad_c is None else grad_c
        grad_product = grad_c * broadcast_groups(inverse, c)
        grad_product = chain(grad_product, ("mul", broadcast_filters(inverse_weight, c))).to(x.dtype)
        grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
            grad_product, x, weight, None, *args, [*ctx.needs_input_grad[:2], False]
        )
        if ctx.needs_input_grad[0]:
            products = torch.mul(grad_c, c, out=grad_product) if can_overwrite(grad_c, c) else grad_c * c
            along = sum_groups(products, groups, dtype=inverse.dtype)
            if grad_inverse is not None:
                along = along + grad_inverse * inverse
            share = box_filter_backward(along * inverse.square(), x, weight, stride, padding, dilation, groups).to(
                x.dtype
            )
            add = grad_x.addcmul_ if can_overwrite(grad_x, x) else grad_x.addcmul
            grad_x = add(x, broadcast_groups(share, x), value=-1).to(dtype)
        if ctx.needs_input_grad[1]:
            grad_weight = row_norm_backward(grad_weight, grad_inverse_weight, weight, inverse_weight).to(dtype)
        return grad_x, grad_weight, None, None, None, None

    @staticmethod
    def tangents(ctx: Any, dx: Tensor | None, dw: Tensor | None, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
        x, weight, c, inverse, inverse_weight = ctx.saved_tensors
        dx, dw, args, groups = or_zeros(dx, x), or_zeros(dw, weight), conv_args(*ctx.options), ctx.options[-1]
        squares = sum_groups(x * dx, groups, dtype=inverse.dtype)
        # −dn/n of patches and of filters
        of_patches = torch.convolution(squares, _box_filter(squares, weight), None, *args) * inverse.square()
        of_filters = (weight * dw).flatten(1).sum(1, dtype=inverse_weight.dtype) * inverse_weight.square()
        product = torch.convolution(dx, weight, None, *args) + torch.convolution(x, dw, None, *args)
        dc = product * broadcast_groups(inverse, c) * broadcast_filters(inverse_weight, c)
        dc = dc - c * (broadcast_groups(of_patches, c) + broadcast_filters(of_filters, c))
        return dc.to(c.dtype), -inverse * of_patches, -inverse_weight * of_filters


def unscaled_cosines(
    x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Return c, n = 1/‖patch‖, m = 1/‖w‖ and a number f: up to rounding the cosines are c·n·f."""
    args = conv_args(stride, padding, dilation, groups)
    headroom = _headroom(x.dtype)
    squares = _group_squares(x, groups)
    inverse = inverse_norm(torch.convolution(squares, _box_filter(squares, weight), None, *args), x.dtype)
    inverse_weight = inverse_row_norm(weight)
    short = (weight * (inverse_weight * headroom).view(-1, *[1] * (x.dim() - 1))).to(x.dtype)
    return torch.convolution(x, short, None, *args), inverse, inverse_weight, 1 / headroom


def box_filter_backward(
    grad: Tensor, x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    """Compute the gradient (B, G, ...) of the box filter's input, the sums of squares of x."""
    ones = _box_filter(grad, weight)
    flipped = [d * (k - 1) - p for d, k, p in zip(dilation, weight.shape[2:], padding, strict=True)]
    if all(s == 1 for s in stride) and min(flipped) >= 0:  # a box filter again, several times as fast
        return torch.convolution(grad, ones, None, *conv_args(stride, flipped, dilation, groups))
    like_squares = grad.new_empty(1).expand(x.shape[0], groups, *x.shape[2:])
    args = conv_args(stride, padding, dilation, groups)
    share: Tensor = torch.ops.aten.convolution_backward(grad, like_squares, ones, None, *args, [True, False, False])[0]
    return share


def conv_args(stride: Any, padding: Any, dilation: Any, groups: int) -> tuple[Any, ...]:
    """Return the last arguments of torch.convolution."""
    return stride, padding, dilation, False, [0] * len(stride), groups


def inverse_row_norm(weight: Tensor) -> Tensor:
    """Compute 1/‖w‖ (N,) of neurons (N, ...) of any length; 0 for zero neurons."""
    norms = _row_norms(weight)
    factor = shrink_factors(weight.flatten(1), (1,)) if has_overflow(norms) else None
    if factor is None:
        return inverse_norm(norms.square(), weight.dtype)
    norms = _row_norms(weight.flatten(1) * factor)
    return inverse_norm(norms.square(), weight.dtype) * factor.squeeze(1)


def _row_norms(weight: Tensor) -> Tensor:
    return torch.linalg.vector_norm(weight.flatten(1), dim=1, dtype=accumulation_dtype(weight.dtype))


def row_norm_backward(grad_weight: Tensor, grad_inverse: Tensor | None, weight: Tensor, inverse: Tensor) -> Tensor:
    """Add the gradient through n = 1/‖w‖ to `grad_weight`, the gradient through the product in y = ⟨x, w⟩·n.

    It needs Σ(gradient·y), which is ⟨w, grad_weight⟩ row by row, so y need not be kept.
    """
    shape = (len(weight), math.prod(weight.shape[1:]))  # not -1: there may be no rows
    rows, grad_rows = weight.reshape(shape), grad_weight.reshape(shape)
    along = _row_dot(rows, grad_rows, inverse.dtype)
    if grad_inverse is not None:
        along = along + grad_inverse * inverse
    share = (along * inverse.square()).to(weight.dtype).unsqueeze(1)
    if can_overwrite(grad_rows, rows):
        return grad_rows.addcmul_(rows, share, value=-1).view_as(weight)
    return torch.addcmul(grad_rows, rows, share, value=-1).view_as(weight)


def _row_dot(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute ⟨a_n, b_n⟩ (N,) in chunks."""
    pairs = zip(_chunks(a), _chunks(b), strict=True)
    return _cat([(rows * others).sum(1, dtype=dtype) for rows, others in pairs])


def _group_squares(x: Tensor, groups: int) -> Tensor:
    """Sum squares over the channels of each group, in chunks: (B, G, ...)."""
    dtype = accumulation_dtype(x.dtype)
    return _cat([sum_groups(piece.to(dtype).square(), groups) for piece in _chunks(x)])


def _chunks(x: Tensor) -> tuple[Tensor, ...]:
    """Split x along its first dimension into chunks that fit in the cache; not where the number would be recorded."""
    if is_recorded() or x.numel() < 2**18:
        return (x,)
    return x.chunk(1 + x.numel() // 2**18)


def _cat(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _to_float32_if_half(saved: Tensor) -> Tensor:
    """Cast float16 to float32 for a backward pass: it cannot hold 1/‖x‖² nor sums over a batch."""
    return saved.float() if saved.dtype is torch.float16 else saved


def _headroom(dtype: torch.dtype) -> float:
    """Return the power of two by which filters are scaled before the product; the result is scaled back.

    Then no finite float32 patch makes the product overflow, and ∞ · 0 (a patch that counts as zero) cannot become NaN.
    (A literal, because torch.compile with dynamic shapes takes a module's float for a variable.)
    """
    return 1.0 if dtype is torch.float16 else 2.0**-20


def broadcast_filters(values: Tensor, c: Tensor) -> Tensor:
    """View (O,) so that it broadcasts over (B, O, ...)."""
    return values.view(-1, *[1] * (c.dim() - 2))


def broadcast_groups(per_group: Tensor, x: Tensor) -> Tensor:
    """Repeat (B, G, ...) so that it broadcasts over the channels of x, (B, G·n, ...)."""
    groups, channels = per_group.shape[1], x.shape[1]
    return per_group if groups in (1, channels) else per_group.repeat_interleave(channels // groups, 1)


def sum_groups(x: Tensor, groups: int, dtype: torch.dtype | None = None) -> Tensor:
    """Sum (B, G·n, ...) over the n channels of each group: (B, G, ...)."""
    if groups == 1:
        return x.sum(1, keepdim=True, dtype=dtype)
    return x.unflatten(1, (groups, -1)).sum(2, dtype=dtype)


def _box_filter(like: Tensor, weight: Tensor) -> Tensor:
    """Make the box filter: one channel in, one out, for each group."""
    return like.new_ones(like.shape[1], 1, *weight.shape[2:])
