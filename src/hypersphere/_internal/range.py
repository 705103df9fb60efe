"""Numbers near the ends of a dtype's range: no finite input gives NaN or infinity, in value or gradient.

Squares and products overflow long before their factors do. Where looking at the largest number costs nothing (on the
CPU, outside of a graph) what is too large is scaled by a power of two, which is exact: vectors whose length does not
matter each by its own (:func:`tamed`), a factor of a product as a whole, with the result scaled back
(:func:`rescaled`). What then exceeds the range in truth is the dtype's largest number. Elsewhere nothing is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def largest(x: Tensor) -> float:
    """Return the largest |element| of x; 0.0 where a look would wait for a device or break a graph."""
    if not _may_look(x):
        return 0.0
    low, high = torch.aminmax(x.detach())
    return max(high.item(), -low.item())


def overflowed(norms: Tensor) -> bool:
    """Return whether a norm is infinite: a look at a few numbers where those of many were needed anyway."""
    return _may_look(norms) and not norms.sum().item() < math.inf


def _may_look(x: Tensor) -> bool:
    if x.device.type != "cpu" or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return x.numel() > 0


def power_above(x: Tensor, limit: float) -> float:
    """Return the power of two by which to divide x so that no element is above `limit`; 1.0 if none is."""
    size = largest(x)
    return 2.0 ** math.ceil(math.log2(size / limit)) if limit < size < math.inf else 1.0


def powers_above(x: Tensor, limit: float) -> Tensor | None:
    """Return such powers of two for each row of x (B, d), at least 1, as (B, 1); None if all are 1."""
    if not limit < largest(x) < math.inf:
        return None
    sizes = x.detach().to(torch.promote_types(x.dtype, torch.float32)).abs().amax(1, keepdim=True)
    return torch.ldexp(torch.ones_like(sizes), torch.frexp(sizes / limit)[1].clamp(min=0))


def root(dtype: torch.dtype, n: int) -> float:
    """Return the n-th root of the dtype's largest number."""
    return float(torch.finfo(dtype).max) ** (1 / n)


def tamed(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Scale vectors (along `dims`) whose squares would overflow, each by a power of two; their directions stay."""
    factor = taming(x, dims)
    return x if factor is None else x * factor


def taming(x: Tensor, dims: Sequence[int]) -> Tensor | None:
    """Return the factors of :func:`tamed`, None if all are 1; float16 needs none, it is squared in float32."""
    limit = root(x.dtype, 2) / 16
    if x.dtype is torch.float16 or not largest(x) > limit:
        return None
    shrink = 2.0 ** math.floor(-math.log2(16 * root(x.dtype, 2)))
    sizes = x.detach().abs().amax(tuple(dims), keepdim=True)
    return torch.where(sizes > limit, torch.full_like(sizes, shrink), 1.0)


def centered(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Scale parts (along `dims`) that are very large or very small, each by a power of two, to a size of about one.

    For functions that do not see it: unlike :func:`tamed` it helps them with tiny parts too.
    """
    if not _may_look(x):
        return x
    sizes = x.detach().abs().amax(dims, keepdim=True)
    limit = root(x.dtype, 4)
    if not bool(((sizes > limit) | ((sizes < 1 / limit) & (sizes > 0))).any()):
        return x
    most = round(math.log2(torch.finfo(x.dtype).max)) - 2  # the factor is finite too
    exponents = torch.frexp(sizes)[1].clamp(-most, most)
    factor = torch.ldexp(torch.ones_like(sizes), -exponents)
    return rescaled(x, factor, factor)


def rescaled(x: Tensor, factor: float | Tensor, back: float | Tensor, limit: float | None = None) -> Tensor:
    """x·factor within ±limit (the dtype's largest number), with the gradient times `back`, within the range too.

    To compute f(x) for a homogeneous f and large x: rescaled(f(rescaled(x, 1/up, 1)), up, 1).
    """
    y: Tensor = _Rescale.apply(x, factor, back, limit)
    return y


def finite_gradient(x: Tensor, *more: torch.dtype) -> Tensor:
    """x; if it is float16 (or of the dtypes `more`) its gradient is what that can hold.

    Not under autocast: a GradScaler looks for infinity.
    """
    if x.dtype not in (torch.float16, *more) or not x.requires_grad or torch.compiler.is_compiling() or x.is_meta:
        return x
    return x if torch.is_autocast_enabled(x.device.type) else rescaled(x, 1.0, 1.0)


def fit(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert x, of more range perhaps: what `dtype` cannot hold becomes its largest number."""
    if torch.finfo(dtype).max < torch.finfo(x.dtype).max:
        largest_number = torch.finfo(dtype).max
        x = x.clamp(-largest_number, largest_number)
    return x.to(dtype)


class _Rescale(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: float | Tensor, back: float | Tensor, limit: float | None) -> Tensor:
        return _within(x * factor, limit, x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.back = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _within(grad * ctx.back, None, grad.dtype), None, None, None


def _within(x: Tensor, limit: float | None, dtype: torch.dtype) -> Tensor:
    limit = torch.finfo(dtype).max if limit is None else limit
    return x.clamp(-limit, limit).to(dtype)


class NoGradientForNaN(Function):
    """x; a gradient that does not exist counts as 0."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.nan_to_num(0.0)


class ClampWithReturn(Function):
    """clamp(x, low, high); beyond the range a gradient whose descent leads back passes, one that leads out does not."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, low: float, high: float) -> Tensor:
        return x.clamp(low, high)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.low, ctx.high = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        outward = ((x < ctx.low) & (grad > 0)) | ((x > ctx.high) & (grad < 0))
        return grad.masked_fill(outward, 0.0), None, None


def capped(x: Tensor, limit: float) -> Tensor:
    """x, with elements beyond ±limit counted as ±limit; their gradients pass if they lead back."""
    if not largest(x) > limit:
        return x
    y: Tensor = ClampWithReturn.apply(x, -limit, limit)
    return y
