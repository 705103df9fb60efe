"""Prevent overflow: no finite input gives NaN or infinity, in value or gradient.

Squares and products overflow long before their factors do. Where reading the largest element is free (on the CPU,
outside of a graph), tensors that are too large are scaled by a power of two, which is exact: vectors whose length does
not matter each by its own (:func:`shrink_huge`), a factor of a product as a whole, with the result scaled back
(:func:`rescale`). A result that still exceeds the range becomes the dtype's largest number. Elsewhere no value is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .functions import apply, is_recorded, save


def max_abs(x: Tensor) -> float:
    """Return the largest |element| of x; 0.0 if x is empty or reading it would synchronize or break a graph."""
    if not can_read_for_free(x) or not x.numel():
        return 0.0
    low, high = torch.aminmax(x.detach())
    return max(high.item(), -low.item())


def has_overflow(norms: Tensor, limit: float = math.inf) -> bool:
    """Return whether the sum of norms reaches a limit or is NaN; norms are few and needed anyway, so this is cheap."""
    return can_read_for_free(norms) and norms.numel() > 0 and not norms.sum().item() < limit


def can_read_for_free(x: Tensor) -> bool:
    """Return whether reading a value neither waits for a device nor breaks a graph."""
    if x.device.type != "cpu" or is_recorded():
        return False
    return not torch._C._are_functorch_transforms_active()


def power_of_two_divisor(x: Tensor, limit: float) -> float:
    """Return the power of two by which to divide x so that no element is above `limit`; 1.0 if none is."""
    size = max_abs(x)
    return 2.0 ** math.ceil(math.log2(size / limit)) if limit < size < math.inf else 1.0


def row_divisors(x: Tensor, limit: float) -> Tensor | None:
    """Return :func:`power_of_two_divisor` of each row of x (B, d) as (B, 1); None if all are 1."""
    if not limit < max_abs(x):
        return None
    sizes = x.detach().to(torch.promote_types(x.dtype, torch.float32)).abs().amax(1, keepdim=True)
    exponents = torch.frexp(torch.where(sizes < math.inf, sizes / limit, 0.0))[1]
    return torch.ldexp(torch.ones_like(sizes), exponents.clamp(min=0))


def max_root(dtype: torch.dtype, n: int) -> float:
    """Return the n-th root of the dtype's largest number."""
    return float(torch.finfo(dtype).max) ** (1 / n)


def shrink_huge(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Scale vectors (along `dims`) whose squares would overflow, each by a power of two; directions do not change."""
    factor = shrink_factors(x, dims)
    return x if factor is None else x * factor


def shrink_factors(x: Tensor, dims: Sequence[int]) -> Tensor | None:
    """Return the factors of :func:`shrink_huge`; None if all are 1. float16 is squared in float32 and needs none."""
    limit = max_root(x.dtype, 2) / 16
    if x.dtype is torch.float16 or not max_abs(x) > limit:
        return None
    shrink = 2.0 ** math.floor(-math.log2(16 * max_root(x.dtype, 2)))
    sizes = x.detach().abs().amax(tuple(dims), keepdim=True)
    return torch.where(sizes > limit, torch.full_like(sizes, shrink), 1.0)


def scale_to_one(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Scale very large or very small parts (along `dims`), each by a power of two, so that max |element| is about one.

    For scale-invariant functions. Unlike :func:`shrink_huge` it scales tiny parts too.
    """
    if not can_read_for_free(x) or not x.numel():
        return x
    sizes = x.detach().abs().amax(dims, keepdim=True)
    limit = max_root(x.dtype, 4)
    if not bool(((sizes > limit) | ((sizes < 1 / limit) & (sizes > 0))).any()):
        return x
    most = round(math.log2(torch.finfo(x.dtype).max)) - 2  # so that the factor is finite too
    exponents = torch.frexp(sizes)[1].clamp(-most, most)
    factor = torch.ldexp(torch.ones_like(sizes), -exponents)
    return rescale(x, factor, factor)


def rescale(x: Tensor, factor: float | Tensor, back: float | Tensor, limit: float | None = None) -> Tensor:
    """Return x·factor clamped to ±limit (default: the dtype's largest number); the gradient is multiplied by `back`.

    To compute f(x) for a homogeneous f and large x: rescale(f(rescale(x, 1/up, 1)), up, 1).
    """
    y: Tensor = apply(_Rescale, x, factor, back, limit)
    return y


def finite_gradient(x: Tensor, *more: torch.dtype) -> Tensor:
    """Return x; if it is float16 (or of the dtypes `more`) its gradient is clamped to the dtype's range.

    Not under autocast, where a GradScaler checks for infinity.
    """
    if x.dtype not in (torch.float16, *more) or not x.requires_grad or x.is_meta:
        return x
    return x if torch.is_autocast_enabled(x.device.type) else rescale(x, 1.0, 1.0)


def saturating_cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast x to `dtype`; values outside of its range become its largest number."""
    limit = torch.finfo(dtype).max
    if limit < torch.finfo(x.dtype).max:
        x = x.clamp(-limit, limit)
    return x.to(dtype)


class _Rescale(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: float | Tensor, back: float | Tensor, limit: float | None) -> Tensor:
        return _clamp_cast(x * factor, limit, x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.factor, ctx.back, _ = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _clamp_cast(grad * ctx.back, None, grad.dtype), None, None, None

    @staticmethod
    def tangents(ctx: Any, dx: Tensor, *_: Any) -> Tensor:
        return (dx * ctx.factor).to(dx.dtype)


def _clamp_cast(x: Tensor, limit: float | None, dtype: torch.dtype) -> Tensor:
    limit = torch.finfo(dtype).max if limit is None else limit
    return x.clamp(-limit, limit).to(dtype)


class StatelessFunction(Function):
    """A Function whose backward pass needs neither its inputs nor its output."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass


class NanGradientToZero(StatelessFunction):
    """Return x; a NaN gradient becomes 0."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.nan_to_num(0.0)

    @staticmethod
    def tangents(ctx: Any, dx: Tensor) -> Tensor:
        return dx.view_as(dx)


class ClampWithInwardGradient(Function):
    """clamp(x, low, high); outside of the range only gradients pass whose descent leads back into it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, low: float, high: float) -> Tensor:
        return x.clamp(low, high)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.low, ctx.high = inputs
        save(ctx, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        outward = ((x < ctx.low) & (grad > 0)) | ((x > ctx.high) & (grad < 0))
        return grad.masked_fill(outward, 0.0), None, None

    @staticmethod
    def tangents(ctx: Any, dx: Tensor, *_: Any) -> Tensor:
        (x,) = ctx.saved_tensors
        return dx.masked_fill((x < ctx.low) | (x > ctx.high), 0.0)


def clamp_abs(x: Tensor, limit: float) -> Tensor:
    """Clamp x to ±limit; outside of it only gradients pass whose descent leads back."""
    if not max_abs(x) > limit:
        return x
    y: Tensor = apply(ClampWithInwardGradient, x, -limit, limit)
    return y
