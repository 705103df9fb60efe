"""A fused sphere convolution for the CPU that allocates few tensors of the output's size.

Beside its product a sphere convolution costs mostly memory: glibc returns large blocks to the system, and a new block
costs page faults, about as much as ten passes over an existing one. So this Function works in chunks that fit in the
cache. Beside the output and the input's gradient it allocates one tensor of the output's size (two for the sigmoid):
the cosines, which the backward pass overwrites with the gradient of the product.

:func:`is_supported` says where it replaces :func:`.cosine.cosine_conv` followed by the similarity. Second
derivatives always use those two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._internal.functions import apply, can_overwrite, is_recorded, is_transformed
from .._internal.overflow import shrink_huge
from .._internal.precision import autocast_enabled
from .cosine import (
    box_filter_backward,
    broadcast_filters,
    broadcast_groups,
    conv_args,
    row_norm_backward,
    sum_groups,
    unscaled_cosines,
)
from .similarity import ChunkedSimilarity

CHUNK = 2**17  # elements


def is_supported(x: Tensor, *others: Tensor | float | None) -> bool:
    """Return whether the fused version can be used: eager mode on a CPU, all float32 or all float64."""
    return (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and all(tensor.dtype is x.dtype for tensor in others if isinstance(tensor, Tensor))
        and not is_recorded()
        and not is_transformed()
        and not autocast_enabled(x)
    )


def sphere_conv(
    x: Tensor,
    weight: Tensor,
    scale: Tensor | float | None,
    bias: Tensor | None,
    g: ChunkedSimilarity,
    options: Sequence[Any],
    unfused: Callable[..., Tensor],
) -> Tensor:
    """Compute scale·g(cos) + bias (B, O, ...) of the patches of x (B, C, ...) with filters (O, C/G, ...).

    Args:
        options: stride, padding, dilation and groups.
        unfused: the same function of (x, weight, scale, bias) that can be differentiated twice.
    """
    x, weight = shrink_huge(x, range(1, x.dim())), shrink_huge(weight, range(1, weight.dim()))
    tensors = [tensor for tensor in (x, weight, scale, bias) if isinstance(tensor, Tensor)]
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    y: Tensor = apply(_FusedConv, x, weight, scale, bias, g, tuple(options), unfused, learns)
    return y


class _FusedConv(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        scale: Tensor | float | None,
        bias: Tensor | None,
        g: ChunkedSimilarity,
        options: tuple[Any, ...],
        unfused: Callable[..., Tensor],
        learns: bool,
    ) -> Tensor:
        c, inverse, inverse_weight, factor = unscaled_cosines(x, weight, *options)
        y = torch.empty_like(c) if learns else c
        slope = torch.empty_like(c) if learns and g.saves_slope else None
        factors = broadcast_filters(scale, c) if isinstance(scale, Tensor) else scale
        shift = None if bias is None else broadcast_filters(bias, c)
        for c_, n_, y_, slope_ in _chunks(c, inverse, y, slope):
            _scale_cosines(c_, n_, factor)
            value = g.value(c_, y_, slope_)
            if factors is not None:
                value = torch.mul(value, factors, out=y_)
            if shift is not None:
                value = torch.add(value, shift, out=y_)
            if value is not y_:
                y_.copy_(value)
        ctx.g, ctx.options, ctx.unfused, ctx.overwritten = g, options, unfused, False
        ctx.number = None if isinstance(scale, Tensor) else scale
        if learns:
            learned = scale if isinstance(scale, Tensor) else None
            ctx.save_for_backward(x, weight, learned, bias, c, inverse, inverse_weight, slope)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale, bias, c, inverse, inverse_weight, slope = ctx.saved_tensors
        if not can_overwrite(grad, x, weight):
            return _unfused_backward(ctx, grad, (x, weight, scale, bias))
        g, groups = ctx.g, ctx.options[-1]
        needs_x, needs_weight, needs_scale, needs_bias, *_ = ctx.needs_input_grad
        args = conv_args(*ctx.options)
        # The gradient of the product overwrites the cosines; a second backward pass computes them again.
        overwritten, ctx.overwritten = ctx.overwritten, True
        if overwritten:
            c, _, _, factor = unscaled_cosines(x, weight, *ctx.options)
            for c_, n_ in _chunks(c, inverse):
                _scale_cosines(c_, n_, factor)
        c = c.data  # its own version counter
        along = torch.empty_like(inverse)
        shares_of_scale, shares_of_bias = [], []
        factors = ctx.number if scale is None else broadcast_filters(scale, c)
        space = [0, *range(2, c.dim())]
        for c_, n_, grad_, along_, slope_ in _chunks(c, inverse, grad, along, slope):
            if needs_bias:
                shares_of_bias.append(grad_.sum(space))
            if needs_scale:
                value = g.value(c_, torch.empty_like(c_), None)
                shares_of_scale.append((value * grad_).sum(space))
            derivative = slope_ if slope_ is not None else g.slope(c_)
            if derivative is not None:
                grad_ = torch.mul(derivative, grad_, out=None if derivative is slope_ else derivative)
            if factors is not None:
                grad_ = grad_ * factors if derivative is None else grad_.mul_(factors)
            if needs_x:
                along_.copy_(sum_groups(grad_ * c_, groups))
            torch.mul(grad_, broadcast_groups(n_, c_), out=c_)
        # the filters are unit vectors here; their length is applied to the weight's gradient, which is small
        lengths = inverse_weight.view(-1, *[1] * (x.dim() - 1))
        grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
            c, x, weight * lengths, None, *args, [needs_x, needs_weight, False]
        )
        if needs_x:
            share = box_filter_backward(along.mul_(inverse).mul_(inverse), x, weight, *ctx.options)
            for grad_x_, x_, share_ in _chunks(grad_x, x, share):
                grad_x_.addcmul_(x_, broadcast_groups(share_, x_), value=-1)
        if needs_weight:
            grad_weight = row_norm_backward(grad_weight.mul_(lengths), None, weight, inverse_weight)
        grad_scale = torch.stack(shares_of_scale).sum(0) if needs_scale else None
        grad_bias = torch.stack(shares_of_bias).sum(0) if needs_bias else None
        return grad_x, grad_weight, grad_scale, grad_bias, None, None, None, None


def _unfused_backward(ctx: Any, grad: Tensor, saved: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Compute the gradients by `unfused`, if they are to be differentiated or batched."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # views, as one input may depend on another
        inputs = [None if tensor is None else tensor.view_as(tensor) for tensor in saved]
        x, weight, scale, bias = inputs
        y = ctx.unfused(x, weight, ctx.number if scale is None else scale, bias)
        needed = zip(inputs, ctx.needs_input_grad, strict=False)
        wanted = [tensor for tensor, is_needed in needed if is_needed and tensor is not None]
        gradients = iter(torch.autograd.grad(y, wanted, grad, create_graph=create_graph))
    grads = [next(gradients) if is_needed else None for is_needed in ctx.needs_input_grad[:4]]
    return *grads, None, None, None, None


def _scale_cosines(c: Tensor, inverse: Tensor, factor: float) -> None:
    c.mul_(broadcast_groups(inverse * factor, c)).clamp_(-1, 1)


def _chunks(first: Tensor, *others: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """Split all tensors along the batch, so that chunks of `first` fit in the cache."""
    count = max(1, first.numel() // CHUNK)
    chunks = first.chunk(count)
    return zip(
        chunks, *([None] * len(chunks) if tensor is None else tensor.chunk(count) for tensor in others), strict=True
    )
