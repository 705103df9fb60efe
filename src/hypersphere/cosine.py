"""The cosine between neurons and what they look at: rows of a matrix, or every patch of a feature map.

Everything angular in this package starts from one of these, with hand-written, twice differentiable gradients:

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
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from ._internal.overflow import finite_gradient, has_overflow, shrink_factors, shrink_huge


def unit(x: Tensor) -> Tensor:
    """Rows of length one: x / ‖x‖ along the last dimension; zero rows stay zero, with gradient zero.

    Args:
        x: (..., d), any floating dtype; norms are computed in float32 at least.

    Example:
        >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    return unit_of_short(shrink_huge(x, (-1,)))


def unit_of_short(x: Tensor) -> Tensor:
    """:func:`unit` of rows that can be squared, as a recurrent layer's states can: without the look at their size."""
    y: Tensor = apply(_Unit, finite_gradient(x))[0]
    return y


def project(x: Tensor, weight: Tensor, target: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """⟨x, w/‖w‖⟩ (..., N) of rows x (..., d) with neurons w (N, d); the unit neurons are never formed.

    The second result holds the values at the indices `target` (..., n), whose gradient needs no tensor of its own.
    """
    if target is None:
        target = torch.zeros(*x.shape[:-1], 0, dtype=torch.int64, device=x.device)
    x, weight, autocast_off = _prepared(x, weight)
    with autocast_off:
        norms = _row_norms(weight.detach())
        if has_overflow(norms):
            weight = shrink_huge(weight, (1,))
            norms = _row_norms(weight.detach())
        y, _, at_target = apply(_Project, x, weight, target, norms)
    return y, at_target


def cosine_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Cosines (..., N) of rows x (..., d) with neurons w (N, d), within [-1, 1]."""
    return clamp_cosine(project(unit(x), weight)[0])


def clamp_cosine(c: Tensor) -> Tensor:
    """Rounding can leave [-1, 1] by an ulp: take it back, and leave the derivative of the exact cosine as it is."""
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
    """Cosines (B, O, ...) of the patches of x (B, C, ...) with filters (O, C/G, ...), within [-1, 1].

    Under autocast the product runs in autocast's dtype, norms in float32.
    """
    x, weight = shrink_huge(x, range(1, x.dim())), shrink_huge(weight, range(1, weight.dim()))
    if _product_dtype(x) is torch.float16:
        x = _to_float16_range(finite_gradient(x))
    x, weight, autocast_off = _prepared(x, weight)
    options = (tuple(stride), tuple(padding), tuple(dilation), groups)
    with autocast_off:
        c: Tensor = apply(_CosineConv, x, weight, *options)[0]
    return c


def apply(function: type[Function], *arguments: Any) -> Any:
    """function.apply, without the look at its signature that takes longer than the rest of a small layer."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return function.apply(*arguments)
    return super(Function, function).apply(*arguments)  # type: ignore[misc]


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype for norms and angles: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def autocasts(x: Tensor) -> bool:
    """Whether autocast is on for the device of x; the meta device has none."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Switch autocast off for the device of x."""
    return torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext()


def _product_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a product with x: its own, or autocast's."""
    if x.dtype is torch.float64 or not autocasts(x):
        return x.dtype
    return torch.get_autocast_dtype(x.device.type)


def _prepared(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, AbstractContextManager[Any]]:
    """Both tensors as a product takes them, and the context that switches autocast off."""
    dtype = _product_dtype(x)
    if dtype is not weight.dtype:  # which may have less range
        weight = shrink_huge(weight, range(1, weight.dim()))
    if dtype is torch.float16:  # it has too little range for weights of any length
        x, weight = finite_gradient(x), finite_gradient(unit(weight.flatten(1))).view_as(weight)
    return x.to(dtype), weight.to(dtype), without_autocast(x)


def _inverse_norm(squares: Tensor, dtype: torch.dtype) -> Tensor:
    """1/√squares, or 0 where the vector counts as zero; `dtype` is the one its elements had."""
    info = torch.finfo(squares.dtype)
    # A float16 vector shorter than its smallest normal number would get gradients that float16 cannot hold.
    smallest = torch.finfo(dtype).tiny ** 2 if dtype is torch.float16 else info.tiny / info.eps
    return F.threshold(squares, smallest, math.inf).rsqrt()  # what is too small becomes infinite, and 1/√∞ = 0


def _to_float16_range(x: Tensor) -> Tensor:
    """Each sample times the power of two that brings its largest element to [128, 256): exact, and unseen by cosines.

    With unit filters the product stays below float16's 65504, and patches 10⁶ times weaker than the strongest count.
    """
    largest = x.detach().abs().amax(dim=tuple(range(1, x.dim())), keepdim=True).to(accumulation_dtype(x.dtype))
    return (x * torch.exp2(7 - largest.clamp_min(2.0**-100).log2().floor())).to(x.dtype)


class _Unit(Function):
    """y = x·n with n = 1/‖x‖; n is an output so that second derivatives see it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        squares = x.to(accumulation_dtype(x.dtype)).square().sum(-1, keepdim=True)
        inverse = _inverse_norm(squares, x.dtype)
        return (x * inverse).to(x.dtype), inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, grad_inverse: Tensor | None) -> Tensor:
        saved, inverse = ctx.saved_tensors
        dtype, y = saved.dtype, _with_range(saved)
        # dy = n·(dx − y·⟨y, dx⟩),  dn = −n²·⟨y, dx⟩
        grad_y = torch.zeros_like(y) if grad_y is None else _with_range(grad_y)
        along = (grad_y * y).sum(-1, keepdim=True, dtype=inverse.dtype)
        if grad_inverse is not None:
            along = along + grad_inverse * inverse
        return (torch.addcmul(grad_y, y, along.to(y.dtype), value=-1) * inverse).to(dtype)


class _Project(Function):
    """y = (x·wᵀ)·n with n = 1/‖w‖, an output so that second derivatives see it, and y at the targets; given ‖w‖."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, target: Tensor, norms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inverse, headroom = _inverse_norm(norms.square(), weight.dtype), _headroom(x.dtype)
        y = F.linear(x * headroom, weight).mul_(inverse / headroom)
        return y, inverse, y.gather(-1, target)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:3], output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad_y: Tensor | None, grad_inverse: Tensor | None, grad_target: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        saved = ctx.saved_tensors
        dtype, (x, weight, target, inverse) = saved[0].dtype, map(_with_range, saved)
        grad_y = x.new_zeros(*x.shape[:-1], len(weight)) if grad_y is None else grad_y
        grad_product = (grad_y * inverse).to(x.dtype)
        if grad_target is not None:
            at_target = (grad_target * inverse[target]).to(x.dtype)
            grad_product = chain(grad_product, ("scatter_add", -1, target, at_target))
        grad_x = (grad_product @ weight).to(dtype) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return grad_x, None, None, None
        grad_weight = grad_product.reshape(-1, len(weight)).mT @ x.reshape(-1, x.shape[-1])
        return grad_x, through_row_norm(grad_weight, grad_inverse, weight, inverse).to(dtype), None, None


class _ClampCosine(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(c: Tensor) -> Tensor:
        return c.clamp(-1, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class _CosineConv(Function):
    """c = (w * x)·n·m, where n = 1/‖patch‖ comes from a box filter over the sum of squares and m = 1/‖w‖.

    All three are outputs so that second derivatives see them. The backward pass costs one convolution's backward and,
    for the share of n, one box filter of Σ_o(gradient·c) and one fused multiply-add with x.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        c, inverse, inverse_weight, factor = unscaled_cosines(x, weight, stride, padding, dilation, groups)
        c.mul_(on_channels(inverse * factor, c)).clamp_(-1, 1)
        return c, inverse, inverse_weight

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, *ctx.options = inputs
        ctx.save_for_backward(x, weight, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad_c: Tensor | None, grad_inverse: Tensor | None, grad_inverse_weight: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        dtype, (x, weight, c, inverse, inverse_weight) = saved[0].dtype, map(_with_range, saved)
        stride, padding, dilation, groups = ctx.options
        geometry = convolution_geometry(stride, padding, dilation, groups)
        grad_c = torch.zeros_like(c) if grad_c is None else grad_c
        grad_product = grad_c * on_channels(inverse, c)
        grad_product = chain(grad_product, ("mul", on_filters(inverse_weight, c))).to(x.dtype)
        grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
            grad_product, x, weight, None, *geometry, [*ctx.needs_input_grad[:2], False]
        )
        if ctx.needs_input_grad[0]:
            products = torch.mul(grad_c, c, out=grad_product) if may_overwrite(grad_c, c) else grad_c * c
            along = sum_groups(products, groups, dtype=inverse.dtype)
            if grad_inverse is not None:
                along = along + grad_inverse * inverse
            share = box_backward(along * inverse.square(), x, weight, stride, padding, dilation, groups).to(x.dtype)
            grad_x = grad_x.addcmul_(x, on_channels(share, x), value=-1).to(dtype)
        if ctx.needs_input_grad[1]:
            grad_weight = through_row_norm(grad_weight, grad_inverse_weight, weight, inverse_weight).to(dtype)
        return grad_x, grad_weight, None, None, None, None


def unscaled_cosines(
    x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int
) -> tuple[Tensor, Tensor, Tensor, float]:
    """c, n, m and a number f: the cosines are c·n·f but for rounding, with n = 1/‖patch‖, m = 1/‖w‖."""
    geometry = convolution_geometry(stride, padding, dilation, groups)
    headroom = _headroom(x.dtype)
    squares = _squares(x, groups)
    inverse = _inverse_norm(torch.convolution(squares, _ones(squares, weight), None, *geometry), x.dtype)
    inverse_weight = inverse_row_norm(weight)
    short = (weight * (inverse_weight * headroom).view(-1, *[1] * (x.dim() - 1))).to(x.dtype)
    return torch.convolution(x, short, None, *geometry), inverse, inverse_weight, 1 / headroom


def box_backward(
    grad: Tensor, x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    """The gradient (B, G, ...) of the sums of squares of x that the box filter took, from that of its output."""
    ones = _ones(grad, weight)
    turned = [d * (k - 1) - p for d, k, p in zip(dilation, weight.shape[2:], padding, strict=True)]
    if all(s == 1 for s in stride) and min(turned) >= 0:  # a box filter again, several times as fast
        return torch.convolution(grad, ones, None, *convolution_geometry(stride, turned, dilation, groups))
    like_squares = grad.new_empty(1).expand(x.shape[0], groups, *x.shape[2:])
    geometry = convolution_geometry(stride, padding, dilation, groups)
    share: Tensor = torch.ops.aten.convolution_backward(
        grad, like_squares, ones, None, *geometry, [True, False, False]
    )[0]
    return share


def convolution_geometry(stride: Any, padding: Any, dilation: Any, groups: int) -> tuple[Any, ...]:
    """The last arguments of torch.convolution."""
    return stride, padding, dilation, False, [0] * len(stride), groups


def may_overwrite(*tensors: Any) -> bool:
    """Whether a backward pass may work in place, which spares it page faults: nothing records or batches it."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    functorch = torch._C._functorch
    return not any(
        isinstance(t, Tensor) and (functorch.is_functorch_wrapped_tensor(t) or functorch.is_legacy_batchedtensor(t))
        for t in tensors
    )


def chain(x: Tensor, *steps: tuple[Any, ...]) -> Tensor:
    """Tensor methods one after the other: chain(x, ("mul", y), ("rsqrt",)) is x.mul(y).rsqrt().

    In place where a backward pass may; `x` must be the caller's own.
    """
    suffix = "_" if may_overwrite(x, *(argument for step in steps for argument in step[1:])) else ""
    for name, *arguments in steps:
        x = getattr(x, name + suffix)(*arguments)
    return x


def inverse_row_norm(weight: Tensor) -> Tensor:
    """1/‖w‖ (N,) of neurons (N, ...), of any length."""
    norms = _row_norms(weight)
    factor = shrink_factors(weight.flatten(1), (1,)) if has_overflow(norms) else None
    if factor is None:
        return _inverse_norm(norms.square(), weight.dtype)
    norms = _row_norms(weight.flatten(1) * factor)
    return _inverse_norm(norms.square(), weight.dtype) * factor.squeeze(1)


def _row_norms(weight: Tensor) -> Tensor:
    return torch.linalg.vector_norm(weight.flatten(1), dim=1, dtype=accumulation_dtype(weight.dtype))


def through_row_norm(grad_weight: Tensor, grad_inverse: Tensor | None, weight: Tensor, inverse: Tensor) -> Tensor:
    """The gradient of w, given the share that came through the product y = ⟨x, w⟩·n, and n = 1/‖w‖.

    n's own share needs Σ(gradient·y), which is ⟨w, grad_weight⟩ row by row: y need not be kept.
    """
    rows, grad_rows = weight.reshape(len(weight), -1), grad_weight.reshape(len(weight), -1)
    along = _row_dot(rows, grad_rows, inverse.dtype)
    if grad_inverse is not None:
        along = along + grad_inverse * inverse
    share = (along * inverse.square()).to(weight.dtype).unsqueeze(1)
    if may_overwrite(grad_rows, rows):
        return grad_rows.addcmul_(rows, share, value=-1).view_as(weight)
    return torch.addcmul(grad_rows, rows, share, value=-1).view_as(weight)


def _row_dot(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """⟨a_n, b_n⟩ (N,); their product is never formed whole."""
    pairs = zip(_pieces(a), _pieces(b), strict=True)
    return _join([(rows * others).sum(1, dtype=dtype) for rows, others in pairs])


def _squares(x: Tensor, groups: int) -> Tensor:
    """Sums of squares over the channels of each group, (B, G, ...); the squares are never formed whole."""
    dtype = accumulation_dtype(x.dtype)
    return _join([sum_groups(piece.to(dtype).square(), groups) for piece in _pieces(x)])


def _pieces(x: Tensor) -> tuple[Tensor, ...]:
    """x cut along its first dimension into pieces that stay in the cache; whole for a compiler, which fuses anyway."""
    if torch.compiler.is_compiling():
        return (x,)
    return x.chunk(1 + x.numel() // 2**18)


def _join(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _with_range(saved: Tensor) -> Tensor:
    """What a backward pass works with: float32 for float16, which cannot hold 1/‖x‖² nor sums over a batch."""
    return saved.float() if saved.dtype is torch.float16 else saved


def _headroom(dtype: torch.dtype) -> float:
    """Filters carry this exact power of two into the product, which takes it out again.

    Then no finite float32 patch makes the product overflow, and an infinity times the 0 of "counts as zero" never
    becomes NaN. (A literal: torch.compile takes a module's float for a variable where it takes shapes for variables.)
    """
    return 1.0 if dtype is torch.float16 else 2.0**-20


def on_filters(values: Tensor, c: Tensor) -> Tensor:
    """(O,) as a view that broadcasts over (B, O, ...)."""
    return values.view(-1, *[1] * (c.dim() - 2))


def on_channels(per_group: Tensor, x: Tensor) -> Tensor:
    """(B, G, ...) so that it broadcasts over the channels of x, (B, G·n, ...)."""
    groups, channels = per_group.shape[1], x.shape[1]
    return per_group if groups in (1, channels) else per_group.repeat_interleave(channels // groups, 1)


def sum_groups(x: Tensor, groups: int, dtype: torch.dtype | None = None) -> Tensor:
    """(B, G·n, ...) summed over the n channels of each group: (B, G, ...)."""
    if groups == 1:
        return x.sum(1, keepdim=True, dtype=dtype)
    return x.unflatten(1, (groups, -1)).sum(2, dtype=dtype)


def _ones(like: Tensor, weight: Tensor) -> Tensor:
    """The box filter: one channel in, one out, for each group."""
    return like.new_ones(like.shape[1], 1, *weight.shape[2:])
