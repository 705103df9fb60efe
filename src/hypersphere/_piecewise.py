"""A sphere convolution on the CPU that forms few tensors of the output's size.

Memory is what a sphere convolution costs beside its product: glibc gives large blocks back to the system, and every new
one is paid for in page faults, about as much as ten passes over a block that is there. So this Function works in pieces
that stay in the cache, and has, beside the output and the input's gradient that any convolution has, one tensor of the
output's size (two for the sigmoid): the cosines, whose place the backward pass gives to the gradient of the product.

:func:`applies` says where it stands in for :func:`hypersphere.cosine.cosine_conv` and the similarity; everywhere else,
and for second derivatives, these two do the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ._internal.overflow import shrink_huge
from .cosine import (
    apply,
    autocasts,
    box_backward,
    convolution_geometry,
    may_overwrite,
    on_channels,
    on_filters,
    sum_groups,
    through_row_norm,
    unscaled_cosines,
)
from .similarity import Pieces

PIECE = 2**17  # elements


def applies(x: Tensor, *others: Tensor | float | None) -> bool:
    """Whether working in pieces gains and is safe: eager mode on a CPU, one type, which needs no care."""
    return (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and all(each.dtype is x.dtype for each in others if isinstance(each, Tensor))
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and not autocasts(x)
    )


def sphere_conv(
    x: Tensor,
    weight: Tensor,
    scale: Tensor | float | None,
    bias: Tensor | None,
    g: Pieces,
    options: Sequence[Any],
    in_parts: Callable[..., Tensor],
) -> Tensor:
    """scale·g(cos) + bias (B, O, ...) of the patches of x (B, C, ...) with filters (O, C/G, ...).

    Args:
        options: stride, padding, dilation and groups.
        in_parts: the same function of (x, weight, scale, bias), made of parts that can be differentiated twice.
    """
    x, weight = shrink_huge(x, range(1, x.dim())), shrink_huge(weight, range(1, weight.dim()))
    tensors = [each for each in (x, weight, scale, bias) if isinstance(each, Tensor)]
    learns = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
    y: Tensor = apply(_SphereConv, x, weight, scale, bias, g, tuple(options), in_parts, learns)
    return y


class _SphereConv(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        scale: Tensor | float | None,
        bias: Tensor | None,
        g: Pieces,
        options: tuple[Any, ...],
        in_parts: Callable[..., Tensor],
        learns: bool,
    ) -> Tensor:
        c, inverse, inverse_weight, factor = unscaled_cosines(x, weight, *options)
        y = torch.empty_like(c) if learns else c
        rise = torch.empty_like(c) if learns and g.keeps_rise else None
        factors = on_filters(scale, c) if isinstance(scale, Tensor) else scale
        shift = None if bias is None else on_filters(bias, c)
        for c_, n_, y_, rise_ in _pieces(c, inverse, y, rise):
            _scale_cosines(c_, n_, factor)
            value = g.value(c_, y_, rise_)
            if factors is not None:
                value = torch.mul(value, factors, out=y_)
            if shift is not None:
                value = torch.add(value, shift, out=y_)
            if value is not y_:
                y_.copy_(value)
        ctx.g, ctx.options, ctx.in_parts, ctx.overwritten = g, options, in_parts, False
        ctx.number = None if isinstance(scale, Tensor) else scale
        if learns:
            learned = scale if isinstance(scale, Tensor) else None
            ctx.save_for_backward(x, weight, learned, bias, c, inverse, inverse_weight, rise)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale, bias, c, inverse, inverse_weight, rise = ctx.saved_tensors
        if not may_overwrite(grad, x, weight):
            return _backward_of_parts(ctx, grad, (x, weight, scale, bias))
        g, groups = ctx.g, ctx.options[-1]
        needs_x, needs_weight, needs_scale, needs_bias, *_ = ctx.needs_input_grad
        geometry = convolution_geometry(*ctx.options)
        # The gradient of the product takes the place of the cosines, which a second pass has to compute again.
        overwritten, ctx.overwritten = ctx.overwritten, True
        if overwritten:
            c, _, _, factor = unscaled_cosines(x, weight, *ctx.options)
            for c_, n_ in _pieces(c, inverse):
                _scale_cosines(c_, n_, factor)
        c = c.data  # a version of its own
        along = torch.empty_like(inverse)
        shares_of_scale, shares_of_bias = [], []
        factors = ctx.number if scale is None else on_filters(scale, c)
        space = [0, *range(2, c.dim())]
        for c_, n_, grad_, along_, rise_ in _pieces(c, inverse, grad, along, rise):
            if needs_bias:
                shares_of_bias.append(grad_.sum(space))
            if needs_scale:
                value = g.value(c_, torch.empty_like(c_), None)
                shares_of_scale.append((value * grad_).sum(space))
            slope = rise_ if rise_ is not None else g.slope(c_)
            if slope is not None:
                grad_ = torch.mul(slope, grad_, out=None if slope is rise_ else slope)
            if factors is not None:
                grad_ = grad_ * factors if slope is None else grad_.mul_(factors)
            if needs_x:
                along_.copy_(sum_groups(grad_ * c_, groups))
            torch.mul(grad_, on_channels(n_, c_), out=c_)
        # unit filters: their length is taken out of the gradient of the weight, which is small
        lengths = inverse_weight.view(-1, *[1] * (x.dim() - 1))
        grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
            c, x, weight * lengths, None, *geometry, [needs_x, needs_weight, False]
        )
        if needs_x:
            share = box_backward(along.mul_(inverse).mul_(inverse), x, weight, *ctx.options)
            for grad_x_, x_, share_ in _pieces(grad_x, x, share):
                grad_x_.addcmul_(x_, on_channels(share_, x_), value=-1)
        if needs_weight:
            grad_weight = through_row_norm(grad_weight.mul_(lengths), None, weight, inverse_weight)
        grad_scale = torch.stack(shares_of_scale).sum(0) if needs_scale else None
        grad_bias = torch.stack(shares_of_bias).sum(0) if needs_bias else None
        return grad_x, grad_weight, grad_scale, grad_bias, None, None, None, None


def _backward_of_parts(ctx: Any, grad: Tensor, saved: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """The gradients by way of `in_parts`, where they are to be differentiated or batched."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # views: one input may depend on another, whose share is not ours to add
        inputs = [None if each is None else each.view_as(each) for each in saved]
        x, weight, scale, bias = inputs
        y = ctx.in_parts(x, weight, ctx.number if scale is None else scale, bias)
        needed = zip(inputs, ctx.needs_input_grad, strict=False)
        wanted = [each for each, is_needed in needed if is_needed and each is not None]
        found = iter(torch.autograd.grad(y, wanted, grad, create_graph=create_graph))
    grads = [next(found) if is_needed else None for is_needed in ctx.needs_input_grad[:4]]
    return *grads, None, None, None, None


def _scale_cosines(c: Tensor, inverse: Tensor, factor: float) -> None:
    c.mul_(on_channels(inverse * factor, c)).clamp_(-1, 1)


def _pieces(first: Tensor, *others: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """All of them cut along the batch, into pieces of `first` that stay in the cache."""
    count = max(1, first.numel() // PIECE)
    pieces = first.chunk(count)
    return zip(pieces, *([None] * len(pieces) if each is None else each.chunk(count) for each in others), strict=True)
